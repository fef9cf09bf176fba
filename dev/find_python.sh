#!/bin/sh
# Print the newest Python from 3.11 to 3.14 on PATH that really starts and can make a virtual environment; else one
# clear line and exit 1. Found by running it: a pyenv shim for a version that is not chosen is on PATH and only prints an error.
set -u

CHECK='import sys
if not (3, 11) <= sys.version_info[:2]:
    sys.exit(3)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(4)
print(sys.executable)'

seen_old='' seen_bare=''
for name in ${PYTHON:-} python3.14 python3.13 python3.12 python3.11 python3 /usr/bin/python3; do
    command -v "$name" >/dev/null 2>&1 || continue
    found=$("$name" -c "$CHECK" 2>/dev/null)
    case $? in
        0) printf '%s\n' "$found"; exit 0 ;;
        3) seen_old=$name ;;
        4) seen_bare=$name ;;
    esac
done
if [ -n "$seen_bare" ]; then
    echo "tandemq: $seen_bare cannot make virtual environments: apt-get install python3-venv, then run make again" >&2
elif [ -n "$seen_old" ]; then
    echo "tandemq: needs Python 3.11 or newer, $seen_old is $("$seen_old" -V 2>&1): install python3.11 or newer, or run make PYTHON=/path/to/python3.11" >&2
else
    echo "tandemq: needs Python 3.11 or newer and found none: apt-get install python3 python3-venv, then run make again" >&2
fi
exit 1
