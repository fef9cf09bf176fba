"""Runs in a queue's own interpreter: ``python -m tests.chaos.peers.produce MODULE enqueue N`` or ``... MODULE left``.

The producer notes its intent before and the answer after, each synced to the disk; whatever is raised counts as
"nobody knows", the kindest reading for a queue. One of eight threads; what is refused is not sent again.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any

from tests.chaos.ledger import Expectation, Ledger

THREADS = 8
ONCE = Expectation(effect=False)


def produce(side: Any, count: int) -> None:
    """Enqueue so many."""

    def work(first: int) -> None:
        ledger = Ledger(os.environ["PEERS_LEDGER"], f"producer-{os.getpid()}-{first}")
        for n in range(first, count, THREADS):
            ref = f"t{n}"
            ledger.intent({ref: ONCE})
            try:
                side.enqueue(ref)
            except Exception as error:  # its outcome is unknown, whatever it says
                ledger.outcome([ref], "info")
                print(f"{type(error).__name__}: {error}"[:200], file=sys.stderr)
            else:
                ledger.outcome([ref], "ok")

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    side = importlib.import_module(sys.argv[1])
    if sys.argv[2] == "left":
        print(json.dumps(list(side.left())))
    else:
        produce(side, int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # whatever threads a client library keeps


if __name__ == "__main__":
    main()
