#!/bin/sh
# A producer: curl 7.55 or newer, nothing else. Stores a task and prints it as JSON; exit code 1: it was refused.
#     producer.sh TYPE [PAYLOAD [KEY]]
# A key makes every repetition safe, so there is always one: what has no answer is sent again, for two minutes.
set -u
type=${1:?usage: producer.sh TYPE [PAYLOAD [KEY]]} payload=${2:-'{}'}
key=${3:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
case $type$key in *[\"\\]*) echo 'no quotes or backslashes in TYPE and KEY' >&2; exit 2 ;; esac

# Prints the answer, and in the last line its status. The token comes over descriptor 3 and the task over standard
# input: arguments are there for all to see.
post() {
    printf '{"type": "%s", "payload": %s, "idempotency_key": "%s"}' "$type" "$payload" "$key" |
        curl --silent --show-error --max-time 60 --config /dev/fd/3 --header 'Content-Type: application/json' \
            --data-binary @- --write-out '\n%{http_code}' "${TANDEMQ_API_URL:-http://127.0.0.1:8000}/jobs" 3<<TOKEN
${TANDEMQ_API_TOKEN:+header = "Authorization: Bearer $TANDEMQ_API_TOKEN"}
TOKEN
}

tries=0
while
    answer=$(post)
    status=$(printf '%s\n' "$answer" | tail -n 1)
    case $status in 000 | 429 | 5??) [ $((tries += 1)) -lt 60 ] ;; *) false ;; esac
do sleep 2; done
case $status in
    20?) printf '%s\n' "$answer" | sed '$d' ;;
    *) printf '%s\n' "$answer" >&2; exit 1 ;;
esac
