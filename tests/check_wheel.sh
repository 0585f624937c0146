#!/usr/bin/env bash
# Build the wheel, install it with its demo extra in an empty environment, and run the demo from an empty folder.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"$python" -m pip --quiet wheel --no-deps --wheel-dir "$work/dist" "$root"
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install --constraint "$root/constraints.txt")
"${pip[@]}" "torch>=2.6"
wheel="$(echo "$work"/dist/ctsattn-*.whl)"
"${pip[@]}" "ctsattn[demo] @ file://$wheel"

mkdir "$work/empty"
cd "$work/empty"
"$work/venv/bin/python" - <<'PY'
import sys

import ctsattn

assert "site-packages" in ctsattn.__file__, ctsattn.__file__
assert not {"torch", "pandas", "lightning", "sklearn", "triton", "matplotlib"} & set(sys.modules)
PY
"$work/venv/bin/ctsattn" demo
test -s ctsattn-demo.png
test "$(ls)" = ctsattn-demo.png
echo "the wheel works: $(basename "$wheel")"
