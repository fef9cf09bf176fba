"""What every queue's task does: say that it began, work for a moment, say that it has ended."""

from __future__ import annotations

import os
import time

from tests.chaos.ledger import Ledger

WORK_S = 0.02


def work(ref: str) -> None:
    """The same for all; the ledger is opened anew, for processes are forked and killed at will."""
    ledger = Ledger(os.environ["PEERS_LEDGER"], f"worker-{os.getpid()}")
    try:
        ledger.ran("exec", ref)
        time.sleep(WORK_S)
        ledger.ran("end", ref)
    finally:
        os.close(ledger._fd)
