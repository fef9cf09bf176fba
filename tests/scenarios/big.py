"""A table as it is after months, every list that people ask for, and the product's bounds, scaled down together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandemq.store import SqlStore, counting, finding
from tests.bulk import Volume
from tests.scenarios.sizes import size

VOLUME = size(Volume(done=30_000, dead=300, ready=400), Volume(done=2_000_000, dead=20_000, ready=5_000))
SCALE = size(20, 1)
BOUNDS = {
    finding: ("SHORT_STRETCH", "LONG_STRETCH", "SORTED_ENTRIES", "CANDIDATES"),
    counting: ("EXACT_ROWS", "COUNT_ENTRIES", "COUNT_CAP", "SAMPLE_ROWS", "BEGUN_STRETCH"),
}
#: Whatever is asked for: a walk reads its stretch twice, may sort entries before, and looks rows up one by one.
STRETCH = (finding.SHORT_STRETCH + finding.LONG_STRETCH) // SCALE
MOST_READ = 2 * STRETCH + 2 * (finding.SORTED_ENTRIES + finding.CANDIDATES) // SCALE + 200
OLD = 160
LISTS: dict[str, dict[str, Any]] = {
    "everything": {},
    **{s: {"state": s} for s in ("pending", "ready", "scheduled", "retrying", "running", "succeeded", "dead")},
    "nothing is cancelled": {"state": "cancelled"},
    "ready of a type that has none": {"state": "ready", "task_type": "type.b"},
    "done of a queue": {"state": "succeeded", "queue": "high"},
    "done of a queue whose rows are the oldest": {"state": "succeeded", "queue": "rare"},
    "done of a type whose rows are the oldest": {"state": "succeeded", "task_type": "rare.type"},
    "dead of a queue": {"state": "dead", "queue": "mail"},
    "dead by type and text": {"state": "dead", "task_type": "type.b", "error_text": "no such order"},
    "dead by a text that none has": {"state": "dead", "error_text": "no such luck"},
    "dead by reason": {"state": "dead", "reason": "timeout"},
    "a queue": {"queue": "mail"},
    "a queue whose rows are the oldest": {"queue": "rare"},
    "a queue that is not there": {"queue": "none"},
    "a type": {"task_type": "type.a"},
    "a type whose rows are the oldest": {"task_type": "rare.type"},
    "a type that is not there": {"task_type": "none"},
    "a worker": {"worker_id": "worker-1"},
    "a worker that is not there": {"worker_id": "none"},
    "a worker and a queue": {"worker_id": "worker-1", "queue": "high"},
    "a worker and what it runs": {"worker_id": "worker-1", "state": "running"},
    "a key": {"key": "none"},
    "ids": {"ids": tuple(range(1, VOLUME.ended, VOLUME.ended // 50))},
}


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bounds small in proportion to the table."""
    for module, names in BOUNDS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) // SCALE)


def handlers(store: SqlStore) -> int:
    """Rows and index entries that the store's one connection has made the server read."""
    rows = store.db.read(lambda tx: tx.rows("SHOW SESSION STATUS LIKE 'Handler_read%%'"))
    return sum(int(n) for _, n in rows)


@contextmanager
def reading(store: SqlStore, at_most: int) -> Iterator[None]:
    """The server reads at most so many rows and index entries for what happens inside, on the one connection."""
    before = handlers(store)
    asking = handlers(store) - before
    yield
    read = handlers(store) - before - 2 * asking
    assert read <= at_most, f"{read} rows were read"
