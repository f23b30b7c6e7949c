#!/usr/bin/env bash
# Make an environment with TerraTorch and Penstock: infra/terratorch-env.sh FOLDER [PYTHON]
#
# TerraTorch needs torchvision, pandas and torchgeo, which Penstock does without: they stay out of .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=$1 python=${2:-python3.11}

test -x "$env/bin/python" || "$python" -m venv "$env"
pip() { "$env/bin/python" -m pip --disable-pip-version-check "$@"; }

pip install --quiet -c constraints.txt -e '.[worker,geo,transformers]' hypothesis pytest pytest-asyncio pytest-timeout \
    torchvision==0.28.0 terratorch==1.2.11
# 1.2.13 asks for torchgeo 0.9, which has no release for Python 3.11; nothing that is used here needs it.
pip install --quiet --no-deps terratorch==1.2.13
# For the recipes of networks of one's own; timm is here already.
pip install --quiet --no-deps open-clip-torch==3.3.0 ftfy==6.3.1

# Where pip brought torchvision built for CUDA beside a torch without, its C++ operators are missing and its import fails
# at the two that have a fake: leave these out.
if ! "$env/bin/python" -c 'import torchvision' 2>/dev/null; then
    sed -i -E 's/^@torch\.library\.register_fake\("(torchvision::q?nms)"\)/@(torch.library.register_fake("\1") if torchvision.extension._has_ops() else (lambda f: f))/' \
        "$env"/lib/python3.*/site-packages/torchvision/_meta_registrations.py
    "$env/bin/python" -c 'import torchvision'
fi
"$env/bin/python" -c 'import terratorch; from importlib.metadata import version; print("TerraTorch", version("terratorch"))'
