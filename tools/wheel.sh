#!/usr/bin/env bash
# Build a wheel and a source archive into out/dist, check what an index would check, install the wheel into an empty
# environment, and use it there: what a user gets must work without this folder.
# usage: PINS=constraints.txt tools/wheel.sh PYTHON
set -euo pipefail
python=$(realpath --no-symlinks "$1")
pins=$(realpath "${PINS:-constraints.txt}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$pins" build twine
rm -rf out/dist
"$work/build/bin/python" -m build --outdir out/dist . > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
"$work/build/bin/python" -m twine check --strict out/dist/*
cp out/dist/nupi-*.whl "$work"
if foreign=$("$python" -m zipfile --list "$work"/nupi-*.whl | grep -v "^nupi[-/]\|^File Name"); then
    echo "the wheel holds more than the package: $foreign" >&2
    exit 1
fi
"$python" -m venv "$work/empty"
empty="$work/empty/bin"
# Not compiled beforehand: most of torch is never imported here.
"$empty/python" -m pip install --no-compile --quiet --disable-pip-version-check --constraint "$pins" "$work"/nupi-*.whl

cd "$work" # away from the sources, which must not be what is imported
"$empty/python" - <<'PYTHON'
import importlib.metadata as metadata
from importlib.resources import files

import torch

import nupi

assert "site-packages" in nupi.__file__, f"imported {nupi.__file__}, not the wheel"
assert metadata.version("nupi") == nupi.__version__
assert files("nupi").joinpath("py.typed").is_file(), "the wheel has no py.typed"
for name in nupi.__all__:
    getattr(nupi, name)
lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
x = torch.tensor([3.0, 4.0], requires_grad=True)
lagrangian.ascend(dual, {"norm": x.norm() - 1})
lagrangian(x.sum(), {"norm": x.norm() - 1}).backward()
assert x.grad is not None
print(f"the wheel of nupi {nupi.__version__} works with torch {torch.__version__} alone")
PYTHON

# Without the extra the command must say how to get it, and fail.
if message=$("$empty/nupi" list 2>&1); then
    echo "nupi list worked without the extra 'paper'" >&2
    exit 1
elif [[ $message != *"pip install 'nupi[paper]'"* ]]; then
    echo "nupi list did not name the extra: $message" >&2
    exit 1
fi
