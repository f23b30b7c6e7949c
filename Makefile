# Everything a person does here. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell command -v python3.11 || command -v python3)
OUT ?= demo-output
SCENE ?=

.PHONY: help setup demo test check chaos bench up

help: ## List what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | column -t -s "$$(printf '\t')"

setup: $(READY) ## Make .venv and install everything (at once done when nothing changed)

demo: $(READY) ## Run everything on a scene: make demo [SCENE=path.tif] [OUT=dir]
	@$(BIN)/penstock demo --out "$(OUT)" $(if $(SCENE),--scene "$(SCENE)")

test: $(READY) ## Run all tests
	$(BIN)/pytest

check: $(READY) ## Lint, format, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(READY) ## Attack the job core at full size (about an hour), and check that mutants do not survive
	$(BIN)/pytest tests/acceptance/test_survival.py tests/acceptance/test_up.py
	$(BIN)/python -m tests.chaos --full
	$(BIN)/python -m tests.chaos.mutants

bench: $(READY) ## Measure scenes of several sizes and the job core on this machine
	$(BIN)/python benchmarks/scenes.py
	$(BIN)/python -m benchmarks.job_queue

up: $(READY) ## Start everything on this machine; Ctrl-C ends it
	@$(BIN)/penstock up

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	@echo "Installing into $(VENV): a few minutes and 1.5 GB the first time"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[worker,geo,demo,dev]'
	@touch $(READY)
