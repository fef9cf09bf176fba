#!/bin/sh
# Everything that `make test` checks, in order. All of it runs even when a step fails; the exit code is honest.
# run_tests.sh --fast: the whole suite on mysqlclient and hiredis, nothing else.
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

# By file, three at a time (much of a test is waiting): each process has servers of its own.
# One Redis from elsewhere is shared, and emptied by each test.
jobs=${TANDEMQ_TEST_JOBS:-3}
[ -z "${TANDEMQ_TEST_REDIS_URL:-}" ] || jobs=0

on_pymysql() {
    $bin/pytest -q -n "$jobs" --dist loadfile "$@" </dev/null
}

on_fast() {
    TANDEMQ_TEST_DRIVER=mysqldb .venv-fast/bin/pytest -q -n "$jobs" --dist loadfile "$@" </dev/null
}

if [ "${1:-}" = --fast ]; then
    shift
    sh dev/provide_fast.sh && sh dev/provide_servers.sh && sh dev/provide_prometheus.sh && sh dev/provide_tools.sh && on_fast "$@"
    exit
fi

selection=''
lacking=''
exec 3>&1
if ! lacking=$(sh dev/provide_servers.sh 2>&1 >&3); then
    selection='not servers'
fi
no_prometheus=''
if ! no_prometheus=$(sh dev/provide_prometheus.sh 2>&1 >&3); then
    selection="${selection:+$selection and }not prometheus"
fi
no_tools=''
if ! no_tools=$(sh dev/provide_tools.sh 2>&1 >&3); then
    selection="${selection:+$selection and }not tools"
fi
# Hundreds of processes import it; where PYTHONDONTWRITEBYTECODE is set each would compile it anew.
$bin/python -m compileall -q src
step ruff $bin/ruff check .
step format $bin/ruff format --check .
step mypy $bin/mypy
step imports $bin/lint-imports --no-logo
step pytest on_pymysql -m "$selection" "$@"

# Once more with the other drivers: what speaks to the servers most. `make test-fast` runs all of it.
no_fast=''
if [ -z "$lacking" ]; then
    if said=$(sh dev/provide_fast.sh 2>&1 >&3); then
        step pytest-fast on_fast -m servers tests/contract tests/crash/test_tx_points.py tests/integration/test_worker.py
    else
        printf '%s\n' "$said"
        no_fast="the tests on tandemq[fast] did not run: $(printf '%s\n' "$said" | tail -n 1)"
        # A machine without a compiler, and a user without root, still get a verdict on the rest.
        case ${CI:-false} in false | 0) ;; *) failed="$failed pytest-fast" ;; esac
    fi
fi

[ -z "$failed" ] || echo "FAILED:$failed" >&2
[ -z "$lacking" ] || echo "FAILED: the tests that need real servers did not run: $lacking" >&2
[ -z "$no_prometheus" ] || echo "FAILED: the alert rules were not tested: $no_prometheus" >&2
case $selection in *'not tools') echo "FAILED: the files of deploy/ were not all checked: $no_tools" >&2 ;; esac
[ -z "$no_fast" ] || echo "NOT CHECKED: $no_fast" >&2
[ -z "$failed$selection" ]
