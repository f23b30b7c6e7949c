#!/usr/bin/env bash
# Makes one archive for a machine with a GPU and without a network, and one command in it that runs everything there.
#
#   benchmarks/gpu_bundle.sh [OUT]        writes OUT (default: build/gpu-bundle.tar.xz), under 40 MB
#   benchmarks/gpu_bundle.sh --small      the dry run: makes an archive without wheels, unpacks it into a temporary folder,
#                                         and runs every part small there, with this environment's packages
#
# There:  tar xJf gpu-bundle.tar.xz && cd penstock-gpu && benchmarks/gpu_run.sh RESULTS
#
# THERE names a file with the packages that the machine has, one a line (default: benchmarks/gpu_there.txt); EXTRAS and
# PYTHON_THERE the wanted extras and the version of its Python. Wheels are of the versions installed here. Scenes need
# rasterio there, or EXTRAS=service,worker,geo,transformers here, with which the archive may exceed its 40 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
here=${PYTHON:-.venv/bin/python}
there=${THERE:-benchmarks/gpu_there.txt}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/penstock-gpu
mkdir -p "$bundle/wheels"

small=
[ "${1:-}" != --small ] || { small=1; shift; }
out=${1:-build/gpu-bundle.tar.xz}
[ -z "$small" ] || out=$work/small.tar.xz
mkdir -p "$(dirname "$out")"

git ls-files -z api workers processors storage src tests benchmarks infra pyproject.toml README.md constraints.txt \
    | grep -zvE '^(api/ui/(src|dist)|tests/(browser|docs|helm|corpus|images)/)' \
    | tar --null -cf - -T - | tar -xf - -C "$bundle"
if [ -z "$small" ]; then
    "$here" -m benchmarks.gpu_wheels "$bundle/wheels" "$there"
fi
tar -C "$work" -cJf "$out" penstock-gpu
size=$(stat -c %s "$out")
echo "$out: $((size / 1000000)) MB"
if [ "$size" -gt 40000000 ]; then
    echo "the archive has more than 40 MB: name fewer EXTRAS, or more packages in $there" >&2
    exit 1
fi
[ -n "$small" ] || exit 0

mkdir "$work/there" "$work/results"
tar -C "$work/there" -xJf "$out"
here=$(realpath -s "$here")
cd "$work/there/penstock-gpu"
PYTHON=$here SMALL=1 benchmarks/gpu_run.sh "$work/results"
