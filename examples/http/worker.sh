#!/bin/sh
# A worker: curl 7.55 or newer, and python3 to take JSON apart. Runs a program for each task of one type:
#     worker.sh TYPE PROGRAM [ARGUMENT...]
# The program reads the payload from standard input; what it prints (JSON, or else text) is the result. Its exit code:
# 0 done, 65 (EX_DATAERR) failed for good, any other failed and tried again. TERM lets it finish what it has begun.
set -u
type=${1:?usage: worker.sh TYPE PROGRAM [ARGUMENT...]}
shift
url=${TANDEMQ_API_URL:-http://127.0.0.1:8000} queue=${QUEUE:-default} lease=${LEASE_S:-30}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
stopping=
trap 'stopping=1' TERM INT

# post PATH ANSWER: sends standard input, puts the answer into a file, prints the status; 000 is no answer.
post() {
    curl --silent --show-error --max-time 60 --config /dev/fd/3 --header 'Content-Type: application/json' \
        --data-binary @- --output "$2" --write-out '%{http_code}' "$url$1" 3<<TOKEN
${TANDEMQ_API_TOKEN:+header = "Authorization: Bearer $TANDEMQ_API_TOKEN"}
TOKEN
}

# heartbeat JOB PROGRAM: renews the lease; ends the program when the lease is lost or the task cancelled.
heartbeat() {
    status=$(printf '{"lease_token": "%s"}' "$(cat "$folder/token")" | post "/jobs/$1/heartbeat" "$folder/beat")
    case $status in
        200) ! grep -q '"cancel_requested": *true' "$folder/beat" || kill "$2" ;;
        404 | 409) kill "$2" ;;
    esac
}

while [ -z "$stopping" ]; do
    status=$(printf '{"worker_id": "%s-%s", "queues": ["%s"], "types": ["%s"], "lease": %s, "wait": 5}' \
        "$(hostname | cut -c 1-40)" $$ "$queue" "$type" "$lease" | post /jobs/claim "$folder/claimed")
    case $status in
        200) ;;
        204) continue ;;
        000 | 429 | 5??) sleep 2; continue ;;
        *) cat "$folder/claimed" >&2; exit 1 ;;
    esac
    id=$(python3 -c '
import json, os, sys
os.chdir(sys.argv[1])
job = json.load(open("claimed"))["jobs"][0]
json.dump(job["payload"], open("payload", "w"))
open("token", "w").write(job["lease_token"])
print(job["id_str"])' "$folder") || exit 1

    "$@" <"$folder/payload" >"$folder/result" 2>"$folder/error" &
    program=$! tenths=0
    while kill -0 "$program" 2>/dev/null; do
        sleep 0.1
        tenths=$((tenths + 1))
        [ $((tenths % (lease * 3))) -ne 0 ] || heartbeat "$id" "$program"
    done
    wait "$program"
    code=$?

    end=$(python3 -c '
import json, os, sys
os.chdir(sys.argv[2])
code, said = int(sys.argv[1]), {"lease_token": open("token").read()}
text = open("result" if code == 0 else "error", errors="replace").read()
if code:
    said |= {"error": text[-4000:].strip() or "no reason given", "error_type": f"exit {code}", "retryable": code != 65}
else:
    try:
        said["result"] = json.loads(text or "null")
    except ValueError:
        said["result"] = text.strip()
json.dump(said, open("said", "w"))
print("fail" if code else "complete")' "$code" "$folder") || exit 1
    while
        status=$(post "/jobs/$id/$end" "$folder/answer" <"$folder/said")
        case $status in 000 | 429 | 5??) true ;; *) false ;; esac
    do sleep 2; done # said twice it is 200 again
    case $status in
        200) echo "job $id: $end" ;;
        *) echo "job $id: $end was refused ($status): $(cat "$folder/answer")" >&2 ;; # 409: somebody else has it by now
    esac
done
