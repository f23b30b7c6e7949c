#!/usr/bin/env bash
# Runs everything that needs a GPU, in order of worth: benchmarks/gpu_run.sh RESULTS
#
# Each part has a limit in seconds; RESULTS/summary.txt gets its line, and RESULTS/PART.log its output, as it ends. The
# exit status counts the parts that failed. SMALL=1: each part small, without a GPU (see gpu_bundle.sh).
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(realpath "${1:?where to write the results}")
mkdir -p "$results"
python=${PYTHON:-python3}
small=${SMALL:-}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
if compgen -G 'wheels/*.whl' > /dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target site wheels/*.whl || exit 1
    export PYTHONPATH=$PWD/site
fi
# The project as an installed package: its entry points name the runners and processors, and this folder is its code.
"$python" - << 'PYTHON' || exit 1
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
folder = pathlib.Path("site", f"penstock-{project['version']}.dist-info")
folder.mkdir(parents=True, exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: penstock\nVersion: {project['version']}\n")
lines = []
for group, points in project["entry-points"].items():
    lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
(folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
PYTHON
export PYTHONPATH=$PWD/src:$PWD:$PWD/site
failed=0

part() {  # part NAME LIMIT_S COMMAND...
    local name=$1 limit=$2 begun=$SECONDS status=0
    shift 2
    timeout -k 10 "$limit" "$@" > "$results/$name.log" 2>&1 || status=$?
    [ "$status" = 0 ] || failed=$((failed + 1))
    printf '%s: status %s, %s s (limit %s)\n' "$name" "$status" $((SECONDS - begun)) "$limit" | tee -a "$results/summary.txt"
    tail -n 12 "$results/$name.log" | sed 's/^/    /'
}

tests() {  # without tests/conftest.py, which needs servers that are not here
    # A test that hangs is told with its stack, before the part's limit ends all of them.
    "$python" -m pytest -q --noconftest -p no:cacheprovider -o filterwarnings=default --timeout 60 "$@"
}
export -f tests
export python

quick=()
[ -z "$small" ] || quick=(--quick)
faults=tests/gpu/test_model_process.py
[ -z "$small" ] || faults="-k 'hurts or halved or ends_with'"
part pictures 240 "$python" -m benchmarks.gpu images contexts "${quick[@]}"
part faults 240 bash -c "tests tests/integration/test_hosted.py $faults"
[ -n "$small" ] || part gpu-tests 300 bash -c 'tests tests/gpu'
if "$python" -c 'import rasterio' 2> /dev/null; then
    part scenes 200 "$python" -m benchmarks.gpu scenes --networks vit-bfloat16 "${quick[@]}"
fi
part up 180 benchmarks/gpu_up.sh
exit "$failed"
