"""``python -m benchmarks.ceiling BATCH``: one worker process, a thread that pops and claims and one that finishes."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Sequence

import redis

from benchmarks import marks
from benchmarks.ceiling import hotpath

#: Batches that may be claimed and not finished yet.
AHEAD = 3


def run(rows: Sequence[hotpath.Row]) -> None:
    """The tasks: nothing, but for the latency measurement."""
    for row in rows:
        if row[3] == "stamp":
            marks.stamp(json.loads(row[4])["order_id"])


def main() -> None:
    batch = int(sys.argv[1])
    ready: queue.Queue[tuple[int, Sequence[hotpath.Row]]] = queue.Queue(maxsize=AHEAD)

    def finishing() -> None:
        session = hotpath.new_session()
        while True:
            token, rows = ready.get()
            hotpath.finish(session, token, rows)
            marks.noop(sum(row[3] == "noop" for row in rows))

    threading.Thread(target=finishing, daemon=True).start()
    session, client = hotpath.new_session(), redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])
    while True:
        if ids := hotpath.pop(client, batch):
            token, rows = hotpath.claim(session, ids)
            if rows:
                run(rows)
                ready.put((token, rows))


if __name__ == "__main__":
    main()
