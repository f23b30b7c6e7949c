#!/usr/bin/env bash
# End to end through `penstock up`: a picture of a tiny model, whose passes run in a process of its own.
set -euo pipefail
python=${PYTHON:-python3}
work=$(mktemp -d)
up=
trap '[ -z "$up" ] || { kill "$up"; wait "$up" || true; }; rm -rf "$work"' EXIT
cd "$work"
"$python" -m penstock.cli sample-model image-classification --out tiny > tiny.toml
sed -i '0,/^runner = /s//own_process = true\nrunner = /' tiny.toml
"$python" -c 'from PIL import Image; Image.new("RGB", (64, 48), "teal").save("picture.png")'
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf 'models = ["%s/tiny.toml"]\nport = %s\n' "$work" "$port" > penstock.toml
"$python" -m penstock.cli up > up.log 2>&1 &
up=$!
export PENSTOCK_URL=http://127.0.0.1:$port
for _ in $(seq 120); do
    "$python" -m penstock.cli models list 2> /dev/null | grep -q tiny && break
    sleep 1
done
"$python" -m penstock.cli submit tiny picture.png --wait --json || { tail -n 40 up.log; exit 1; }
pgrep -f 'penstock.workers.engine.hosted_child' > /dev/null || { echo "there is no process of the model"; exit 1; }
