#!/bin/sh
# Provide redis-server, mariadbd (or mysqld) and tmux for the tests (as root also node and curl), and stop: already there; else, as root,
# installed; else downloaded
# and unpacked under .cache/servers/root without root; else one line to copy, and exit 1.
# Servers that TANDEMQ_TEST_DATABASE_URL and TANDEMQ_TEST_REDIS_URL name are used as they are.
# No service is started, stopped or configured, and no package is removed.
set -u
cd "$(dirname "$0")/.." || exit
root=.cache/servers/root

has() {
    for name in "$@"; do
        [ -z "${TANDEMQ_TEST_UNPACKED_ONLY:-}" ] && command -v "$name" >/dev/null 2>&1 && return 0
        [ -z "${TANDEMQ_TEST_UNPACKED_ONLY:-}" ] && [ -x "/usr/sbin/$name" ] && return 0
        [ -x "$root/usr/sbin/$name" ] || [ -x "$root/usr/bin/$name" ] && return 0
    done
    return 1
}

lacking() {
    [ -n "${TANDEMQ_TEST_REDIS_URL:-}" ] || has redis-server || printf 'redis-server '
    [ -n "${TANDEMQ_TEST_DATABASE_URL:-}" ] || has mariadbd mysqld || printf 'mariadb-server '
    has tmux || printf 'tmux '
}

unpack_without_root() {
    echo "downloading $* and what they need, to be unpacked under $root (nothing is installed)"
    apt=$PWD/.cache/servers/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
    own="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o Debug::NoLocking=1 -o APT::Sandbox::User="
    log=$PWD/.cache/servers/apt.log
    # shellcheck disable=SC2086 # $own is a list of options
    apt-get $own update >"$log" 2>&1 </dev/null || { echo "apt-get update failed:"; tail -n 3 "$log"; return 1; }
    # What the machine has is not fetched again: the servers use its libraries.
    # shellcheck disable=SC2086
    packages=$(apt-get $own install -s --no-remove --no-install-recommends "$@" 2>>"$log" | awk '/^Inst /{print $2}')
    # Already installed and yet asked for: fetched all the same.
    # shellcheck disable=SC2086
    (cd "$apt/debs" && apt-get $own download ${packages:-"$@"} >>"$log" 2>&1 </dev/null) ||
        { echo "apt-get download failed:"; tail -n 3 "$log"; return 1; }
    mkdir -p "$root"
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb -x "$deb" "$root" || return 1
    done
    rm -rf "$apt"
}

# Programs of the examples. Where they cannot be installed the tests that need them say what to type.
programs=''
command -v node >/dev/null 2>&1 || programs='nodejs '
command -v curl >/dev/null 2>&1 || programs="${programs}curl"
if [ -n "$programs" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # a list of packages
    sh dev/install_as_root.sh $programs
fi
missing=$(lacking)
[ -z "$missing" ] && exit 0
mkdir -p .cache/servers
if command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # a list of packages
    [ "$(id -u)" -ne 0 ] || sh dev/install_as_root.sh $missing
    missing=$(lacking)
    # shellcheck disable=SC2086
    [ -z "$missing" ] || unpack_without_root $missing
    missing=$(lacking)
    [ -z "$missing" ] && exit 0
fi
missing=${missing% }
sudo=''
[ "$(id -u)" -eq 0 ] || sudo='sudo '
if command -v apt-get >/dev/null 2>&1; then
    line="${sudo}apt-get install -y --no-remove $missing"
elif command -v dnf >/dev/null 2>&1; then
    line="${sudo}dnf install -y $(echo "$missing" | sed 's/redis-server/redis/')"
elif command -v brew >/dev/null 2>&1; then
    line="brew install $(echo "$missing" | sed 's/-server//g')"
else
    line="export TANDEMQ_TEST_DATABASE_URL=mysql+pymysql://USER:PASSWORD@HOST/ TANDEMQ_TEST_REDIS_URL=redis://HOST:6379/9"
fi
echo "no $missing here; to run all tests: $line" >&2
exit 1
