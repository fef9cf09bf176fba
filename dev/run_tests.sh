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
exec 3>&1
if ! lacking=$(sh dev/provide_servers.sh 2>&1 >&3); then
    selection='not servers'
fi
# Hundreds of processes import it; where PYTHONDONTWRITEBYTECODE is set each would compile it anew.
$bin/python -m compileall -q src
step ruff $bin/ruff check .
step format $bin/ruff format --check .
step mypy $bin/mypy
step imports $bin/lint-imports --no-logo
# By file, two at a time: each process has servers of its own. One Redis from elsewhere is shared, and emptied by each test.
jobs=${TANDEMQ_TEST_JOBS:-2}
[ -z "${TANDEMQ_TEST_REDIS_URL:-}" ] || jobs=0
step pytest $bin/pytest -q -n "$jobs" --dist loadfile -m "$selection" "$@" </dev/null

[ -z "$failed" ] || echo "FAILED:$failed" >&2
[ -z "$selection" ] || echo "FAILED: the tests that need real servers did not run: $lacking" >&2
[ -z "$failed$selection" ]
