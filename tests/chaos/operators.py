"""What operators do, as a short process each: ``python -m tests.chaos.operators cancel|replay|prune|purge NAME``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tandemq import Filter
from tests.chaos.ledger import Ledger
from tests.chaos.tasks import EXPECTED, PRUNED, app, new


def cancel(name: str) -> None:
    """Enqueues a task for later and takes it back."""
    ledger = Ledger(os.environ["CHAOS_FOLDER"], f"operator-{name}")
    ledger.intent({name: EXPECTED["cancelled"]})
    task = app.producer.enqueue(new("plain", name, delay=2.0))
    ledger.outcome([name], "ok")
    ledger.cancel(name, "invoke")
    ledger.cancel(name, app.cancel(task.id))


def purge(name: str) -> None:
    """Enqueues a task for later, takes it back and deletes it, with what others have left of that kind."""
    ledger = Ledger(os.environ["CHAOS_FOLDER"], f"operator-{name}")
    ledger.intent({name: EXPECTED["purged"]})
    task = app.producer.enqueue(new("plain", name, delay=2.0, queue=PRUNED))
    ledger.outcome([name], "ok")
    ledger.cancel(name, "invoke")
    ledger.cancel(name, app.cancel(task.id))
    archive = Path(os.environ["CHAOS_FOLDER"]) / f"purged-{name}"
    print(app.dead.purge(where=Filter(state="cancelled", queue=PRUNED), archive=archive))


def replay(_name: str) -> None:
    """All that always fail, once more: they end dead again."""
    print(app.dead.replay(where=Filter(task_type="chaos.failing")))


def prune(_name: str) -> None:
    """What has ended on the one queue whose rows may be gone."""
    print(app.prune(0, queue=PRUNED))


if __name__ == "__main__":
    {"cancel": cancel, "replay": replay, "prune": prune, "purge": purge}[sys.argv[1]](sys.argv[2])
