#!/bin/sh
# Everything that `make test` checks, in order. All of it runs even when a step fails; the exit code is honest.
set -u
cd "$(dirname "$0")/.." || exit
bin=.venv/bin
failed=''

step() {
    name=$1
    shift
    echo "== $name"
    "$@" || failed="$failed $name"
}

selection=''
lacking=''
if ! sh dev/provide_servers.sh; then
    selection='not servers'
    lacking=yes
fi
# Hundreds of processes import it; where PYTHONDONTWRITEBYTECODE is set each would compile it anew.
$bin/python -m compileall -q src
step ruff $bin/ruff check .
step format $bin/ruff format --check .
step mypy $bin/mypy
step imports $bin/lint-imports
# By file, two at a time: each process has servers of its own. One Redis from elsewhere is shared, and emptied by each test.
jobs=${TANDEMQ_TEST_JOBS:-2}
[ -z "${TANDEMQ_TEST_REDIS_URL:-}" ] || jobs=0
step pytest $bin/pytest -q -n "$jobs" --dist loadfile -m "$selection" "$@" </dev/null

if [ -n "$lacking" ]; then
    echo "FAILED: the tests that need real servers did not run; say 'sh dev/provide_servers.sh' for the line to copy" >&2
    exit 1
fi
if [ -n "$failed" ]; then
    echo "FAILED:$failed" >&2
    exit 1
fi
