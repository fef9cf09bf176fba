"""A producer process: enqueues every kind of task in every way there is, and writes intent and outcome to the ledger.

``python -m tests.chaos.producer NAME SEED``. CHAOS_FOLDER/pace says how many tasks a second it is to enqueue, ``stop``
ends it. It may be killed at any line: what it has written down is what is known.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from tandemq import EnqueueUnknown, NewTask, StoreUnavailable
from tests.chaos.ledger import Expectation, Ledger, now
from tests.chaos.tasks import EXPECTED, OTHER, app, new

#: How often each kind is drawn; ``many`` is 20 to 40 plain ones in one call.
WEIGHTS = {
    "many": 30, "plain": 12, "flaky": 8, "failing": 3, "delayed": 8, "keyed": 8, "cancelled": 6, "slow": 8, "once": 8,
    "own": 8, "rolled_back": 4, "link": 4, "pruned": 4, "poison": 0.3, "wedge": 0.05, "nobody": 0.5, "corrupt": 0.5,
    "odd": 0.5,
}  # fmt: skip
LINKS = 5


class Producer:
    """One process's worth."""

    def __init__(self, name: str, rng: Random, folder: Path) -> None:
        self._name, self._rng, self._folder = name, rng, folder
        self.ledger = Ledger(folder, f"producer-{name}")
        self._n = 0
        self._to_cancel: list[tuple[float, str, int]] = []
        self._engine = sa.create_engine(
            app.settings.database_url, pool_size=1, connect_args={"connect_timeout": 5, "read_timeout": 10}
        )

    def run(self) -> None:
        """Until told to stop."""
        due = time.monotonic()
        while (pace := self._pace()) is not None:
            due = max(due, time.monotonic() - 1.0)
            if pace <= 0 or time.monotonic() < due:
                time.sleep(0.05)
                continue
            due += self.turn(self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]) / pace
            self._cancel_due(now())
        self._cancel_due(float("inf"))
        app.close()

    def turn(self, kind: str) -> int:
        """Enqueue one task, or one batch, of this kind; how many."""
        rng, ref = self._rng, self.ref()
        match kind:
            case "many":
                refs = [ref, *(self.ref() for _ in range(rng.randrange(20, 40)))]
                where: dict[str, Any] = rng.choice([{}, {}, {}, {"priority": 10}, {"queue": OTHER}])
                # Served after the others: how long it waits says nothing about a fault.
                expected = replace(EXPECTED["plain"], kind="other") if "queue" in where else EXPECTED["plain"]
                self.send([(r, expected, new("plain", r, **where)) for r in refs])
                return len(refs)
            case "delayed":
                delay = rng.uniform(0.3, 4.0)
                expected = replace(EXPECTED["plain"], kind="delayed", after=now() + delay)
                self.send([(ref, expected, new("plain", ref, delay=delay))])
                return 1
            case "cancelled":
                self.send([(ref, kind, new("plain", ref, delay=rng.uniform(0.3, 3.0)))], self._cancel_later)
                return 1
            case "keyed":
                return self._keyed(ref)
            case "own" | "rolled_back":
                return self._own_transaction([ref, *(self.ref() for _ in range(3))], commit=kind == "own")
            case "corrupt":
                return self._raw(ref)
        options: dict[str, Any] = {
            "flaky": {"fails": rng.randrange(1, 4)},
            # What the nemesis waits for does not wait behind a backlog.
            "failing": {"max_retries": 2, "priority": 20},
            "slow": {"seconds": rng.uniform(0.2, 1.5), "priority": 20},
            "pruned": {"priority": 20},
            "once": {"max_retries": 0},
            "poison": {"max_retries": 1},
            "wedge": {"max_retries": 0},
            "odd": {"megabytes": rng.choice([0, 0, 5, 50])},
            "link": {"chain": ref, "n": 0, "last": LINKS},
        }.get(kind, {})
        of: str | Expectation = kind
        if kind == "link":
            of, ref = replace(EXPECTED["link"], last=LINKS), f"{ref}/0"
        self.send([(ref, of, new("plain" if kind == "once" else kind, ref, **options))])
        return LINKS + 1 if kind == "link" else 1

    def ref(self) -> str:
        """A name that no other task has."""
        self._n += 1
        return f"{self._name}-{self._n}"

    def send(
        self, tasks: list[tuple[str, str | Expectation, NewTask]], after: Callable[[str, int], None] | None = None
    ) -> str:
        """Intent, enqueue, outcome. One task goes by ``enqueue``, which shares commits, more by ``enqueue_many``."""
        refs, news = [ref for ref, _, _ in tasks], [task for _, _, task in tasks]
        self.ledger.intent({ref: EXPECTED[of] if isinstance(of, str) else of for ref, of, _ in tasks})
        said, handles = self._ask(lambda: app.enqueue_many(news) if len(news) > 1 else [app.producer.enqueue(news[0])])
        self.ledger.outcome(refs, said)
        if said == "ok" and after is not None:
            for ref, handle in zip(refs, handles, strict=True):
                after(ref, handle.id)
        return said

    def _ask(self, ask: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return "ok", ask()
        except EnqueueUnknown:
            return "info", None
        except StoreUnavailable:
            return "fail", None  # its promise: nothing was written
        except Exception as odd:
            self.ledger.surprise(f"enqueue: {type(odd).__name__}: {odd}")
            return "info", None

    def _keyed(self, ref: str) -> int:
        """Asked again with the same key until there is an answer, and once more after it."""
        task = new("plain", ref, idempotency_key=f"key-{ref}")
        for turn in range(30):
            if self.send([(ref, "keyed", task)]) == "ok":
                self.send([(ref, "keyed", task)])
                break
            time.sleep(0.01 if turn < 2 else 0.5)
        return 2

    def _own_transaction(self, refs: list[str], *, commit: bool) -> int:
        """In a transaction of the caller's own: what is rolled back must never run."""
        self.ledger.intent(dict.fromkeys(refs, EXPECTED["plain"]))
        said = "fail"
        try:
            with self._engine.connect() as connection:
                app.enqueue_many([new("plain", ref) for ref in refs], connection=connection)
                if commit:
                    said = "info"
                    connection.commit()
                    said = "ok"
                else:
                    connection.rollback()
        except Exception as broken:
            self._note_odd(broken)
        self.ledger.outcome(refs, said)
        return len(refs)

    def _raw(self, ref: str) -> int:
        """A row that other SQL inserted, with a payload that is no JSON, and never pushed."""
        self.ledger.intent({ref: EXPECTED["corrupt"]})
        said = "fail"
        try:
            with self._engine.connect() as connection:
                columns = f"{app.settings.table_prefix}tasks (task_type, payload)"
                sql = f"INSERT INTO {columns} VALUES ('chaos.plain', :payload)"
                connection.execute(sa.text(sql), {"payload": f'{{"ref": "{ref}", broken'})
                said = "info"
                connection.commit()
                said = "ok"
        except Exception as broken:
            self._note_odd(broken)
        self.ledger.outcome([ref], said)
        return 1

    def _note_odd(self, broken: Exception) -> None:
        if not isinstance(broken, sa.exc.SQLAlchemyError | StoreUnavailable | EnqueueUnknown):
            self.ledger.surprise(f"own transaction: {type(broken).__name__}: {broken}")

    def _cancel_later(self, ref: str, task_id: int) -> None:
        self._to_cancel.append((now() + self._rng.uniform(0.0, 3.0), ref, task_id))

    def _cancel_due(self, until: float) -> None:
        due = [one for one in self._to_cancel if one[0] <= until]
        self._to_cancel = [one for one in self._to_cancel if one[0] > until]
        for _, ref, task_id in due:
            self.ledger.cancel(ref, "invoke")
            try:
                said = app.cancel(task_id)
            except StoreUnavailable:
                said = "info"
            except Exception as odd:
                self.ledger.surprise(f"cancel: {type(odd).__name__}: {odd}")
                said = "info"
            self.ledger.cancel(ref, said)

    def _pace(self) -> float | None:
        text = (self._folder / "pace").read_text()
        return None if text == "stop" else float(text or 0)


if __name__ == "__main__":
    Producer(sys.argv[1], Random(sys.argv[2]), Path(os.environ["CHAOS_FOLDER"])).run()
