#!/usr/bin/env bash
# Make an environment with clients and libraries of other projects: infra/clients-env.sh FOLDER PYTHON
set -euo pipefail
test -x "$1/bin/python" || "$2" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt 'runpod>=1.7,<2' \
    'scikit-learn>=1.5,<2' 'skl2onnx>=1.18,<2'
