#!/bin/sh
# install_as_root.sh PACKAGE...: install them with apt-get. Nothing is removed, and no service is started.
set -u
cd "$(dirname "$0")/.." || exit
export DEBIAN_FRONTEND=noninteractive
echo "installing $* (apt-get install --no-remove; no service is started)"
policy=''
if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT INT TERM
fi
mkdir -p .cache/servers
log=.cache/servers/apt.log
{ apt-get update && apt-get install -y --no-remove --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null
code=$?
[ $code -eq 0 ] || { echo "apt-get failed:"; tail -n 3 "$log"; }
exit $code
