#!/bin/sh
# make_venv.sh EXTRA: make .venv where there is none that works, install tandemq with that extra, and leave a stamp.
set -eu
cd "$(dirname "$0")/.."
extra=$1

if ! .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(sh dev/find_python.sh)
    echo "making .venv with $("$python" -V) ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi
echo "installing tandemq[$extra] into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extra]" </dev/null
touch .venv/.embedded
if [ "$extra" = dev ]; then
    touch .venv/.dev
fi
