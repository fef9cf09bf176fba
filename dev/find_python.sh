#!/bin/sh
# Print the newest Python from 3.11 to 3.14 on PATH that really starts and can make virtual environments; else one clear
# line, and exit 1. Each is run to find out: a pyenv shim for a version that is not chosen only prints an error, and the
# next folder of PATH may hold one that works. PYTHON=/path/to/python comes first.
set -u

CHECK='import sys
if not sys.version_info >= (3, 11):
    sys.exit(3)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(4)
print(sys.executable)'

seen_old=''
seen_bare=''

try() {
    [ -x "$1" ] && [ ! -d "$1" ] || return 0
    found=$("$1" -c "$CHECK" 2>/dev/null </dev/null)
    case $? in
        0) printf '%s\n' "$found"; exit 0 ;;
        3) seen_old=$1 ;;
        4) seen_bare=$1 ;;
    esac
}

[ -z "${PYTHON:-}" ] || try "$(command -v "$PYTHON" || echo "$PYTHON")"
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    rest=$PATH:
    while [ -n "$rest" ]; do
        try "${rest%%:*}/$name"
        rest=${rest#*:}
    done
done
if [ -n "$seen_bare" ]; then
    echo "tandemq: $seen_bare cannot make virtual environments: apt-get install python3-venv, then run make again" >&2
elif [ -n "$seen_old" ]; then
    echo "tandemq: needs Python 3.11 or newer, and $seen_old is older: install one, or run make PYTHON=/path/to/python3.11" >&2
else
    echo "tandemq: needs Python 3.11 or newer and found none: apt-get install python3 python3-venv, then run make again" >&2
fi
exit 1
