#!/bin/sh
# Provide prometheus and promtool for the tests of deploy/prometheus, and stop: already there; else downloaded and unpacked under
# .cache/servers/root, also as root (the package would bring a service and a web interface); else one line to copy, and exit 1.
set -u
cd "$(dirname "$0")/.." || exit
root=.cache/servers/root

has() {
    [ -z "${TANDEMQ_TEST_UNPACKED_ONLY:-}" ] && command -v "$1" >/dev/null 2>&1 && return 0
    [ -x "$root/usr/bin/$1" ]
}

unpack() {
    echo "downloading prometheus, to be unpacked under $root (nothing is installed)"
    apt=$PWD/.cache/servers/apt-prometheus
    log=$PWD/.cache/servers/apt-prometheus.log
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$root"
    own="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o Debug::NoLocking=1 -o APT::Sandbox::User="
    # shellcheck disable=SC2086 # $own is a list of options
    { apt-get $own update && cd "$apt/debs" && apt-get $own download prometheus; } >"$log" 2>&1 </dev/null ||
        { echo "apt-get failed:"; tail -n 3 "$log"; return 1; }
    cd - >/dev/null || return
    dpkg-deb -x "$apt"/debs/prometheus_*.deb "$root" && rm -rf "$apt"
}

has promtool && has prometheus && exit 0
! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1 || unpack
has promtool && has prometheus && exit 0
if command -v brew >/dev/null 2>&1; then
    line='brew install prometheus'
else
    line='put prometheus and promtool (https://prometheus.io/download) on PATH'
fi
echo "no promtool here; to test the alert rules: $line" >&2
exit 1
