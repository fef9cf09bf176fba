#!/bin/sh
# Provide .venv-fast, which has mysqlclient and hiredis beside all that the tests need, and stop: already there; else installed,
# and what mysqlclient is built with too where this is root and has apt; else one line to copy, and exit 1.
set -u
cd "$(dirname "$0")/.." || exit
venv=.venv-fast

is_there() {
    [ -e "$venv/.fast" ] && [ -z "$(find pyproject.toml dev/make_venv.sh -newer "$venv/.fast")" ] &&
        "$venv/bin/python" -c 'import MySQLdb, hiredis' >/dev/null 2>&1
}

# Packages of Debian that bring what is not here.
lacking() {
    command -v "${CC:-cc}" >/dev/null 2>&1 || printf 'gcc libc6-dev '
    if [ -z "${MYSQLCLIENT_CFLAGS:-}" ] || [ -z "${MYSQLCLIENT_LDFLAGS:-}" ]; then
        command -v pkg-config >/dev/null 2>&1 || printf 'pkg-config '
        pkg-config --exists mysqlclient 2>/dev/null || pkg-config --exists libmariadb 2>/dev/null ||
            pkg-config --exists mariadb 2>/dev/null || printf 'libmariadb-dev '
    fi
    "$python" -c 'import os, sys, sysconfig
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("python%d.%d-dev" % sys.version_info[:2], end=" ")'
}

is_there && exit 0
python=$(sh dev/find_python.sh) || exit
missing=$(lacking)
if [ -n "$missing" ] && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    # shellcheck disable=SC2086 # a list of packages
    sh dev/install_as_root.sh $missing
    missing=$(lacking)
fi
if [ -n "$missing" ]; then
    missing=${missing% }
    sudo=''
    [ "$(id -u)" -eq 0 ] || sudo='sudo '
    if command -v brew >/dev/null 2>&1; then
        line='brew install pkg-config mariadb-connector-c'
    elif command -v dnf >/dev/null 2>&1; then
        line="${sudo}dnf install -y gcc pkg-config mariadb-connector-c-devel python3-devel"
    else
        line="${sudo}apt-get install -y --no-remove $missing"
    fi
    echo "no $missing here to build mysqlclient with: $line" >&2
    exit 1
fi
sh dev/make_venv.sh dev,fast "$venv" && is_there && exit 0
echo "mysqlclient and hiredis could not be installed: $venv/bin/python -m pip install -e '.[dev,fast]' tells why" >&2
exit 1
