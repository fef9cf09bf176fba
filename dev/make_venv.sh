#!/bin/sh
# make_venv.sh EXTRA[,EXTRA] [FOLDER]: make FOLDER (.venv) where there is none that works, install tandemq with those extras into
# it, and leave a stamp for each.
set -eu
cd "$(dirname "$0")/.."
extra=$1
venv=${2:-.venv}

if ! "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(sh dev/find_python.sh)
    echo "making $venv with $("$python" -V) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
echo "installing tandemq[$extra] into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extra]" </dev/null
touch "$venv/.embedded"
case ,$extra, in *,dev,*) touch "$venv/.dev" ;; esac
case ,$extra, in *,fast,*) touch "$venv/.fast" ;; esac
