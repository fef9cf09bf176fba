"""The application of a chaos run. Handlers tell the ledger that they began, and write to a resource that fences.

CHAOS_FOLDER is the ledger's folder, CHAOS_EFFECTS the URL of the resource.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from functools import cache
from typing import Any

import sqlalchemy as sa

from tandemq import IN_TRANSACTION, NewTask, RetryPolicy, TandemQ, current_task
from tests.chaos.effects import Effects
from tests.chaos.ledger import Expectation, Ledger

#: Runs allowed for what must succeed in the end, however often its worker is killed: nobody is that unlucky.
RETRIES = 40
#: In the row itself, because whoever ends a lost lease knows no handler.
BACKOFF = [0.1, 0.2, 0.4]
LIMIT_S = 30.0
PRUNED, OTHER = "prunable", "other"
LINKS = "CREATE TABLE IF NOT EXISTS chaos_links (chain VARCHAR(64) NOT NULL, n INT NOT NULL, KEY (chain)) ENGINE=InnoDB"
POLICY = RetryPolicy(max_retries=RETRIES, backoff=BACKOFF, jitter=0.2)

app = TandemQ()


@cache
def _ledger() -> Ledger:
    return Ledger(os.environ["CHAOS_FOLDER"], "handlers")


@cache
def _effects() -> Effects:
    return Effects(os.environ["CHAOS_EFFECTS"])


def _begin(ref: str, **more: Any) -> None:
    task = current_task()
    _ledger().ran("exec", ref, fence=task.fence, token=task.lease_token, **more)


def _effect(ref: str, sleep_s: float = 0.0) -> dict[str, int]:
    """The run's own right to it is told before the work, so that an overtaken run is refused after it."""
    task = current_task()
    _effects().begin(ref, task.fence)
    time.sleep(sleep_s)
    said = _effects().apply(ref, task.fence, task.lease_token)
    _ledger().ran("effect", ref, fence=task.fence, r=said)
    _ledger().ran("end", ref)
    # Also when refused: it is the queue that must not take this result.
    return {"fence": task.fence}


@app.task(name="chaos.plain", retry=POLICY, timeout=LIMIT_S)
def plain(ref: str) -> dict[str, int]:
    _begin(ref)
    return _effect(ref)


@app.task(name="chaos.slow", retry=POLICY, timeout=LIMIT_S)
def slow(ref: str, seconds: float) -> dict[str, int]:
    _begin(ref, slow=True)
    return _effect(ref, seconds)


@app.task(name="chaos.pruned", queue=PRUNED, retry=POLICY, timeout=LIMIT_S)
def pruned(ref: str) -> dict[str, int]:
    _begin(ref)
    return _effect(ref)


@app.task(name="chaos.other", queue=OTHER, retry=POLICY, timeout=LIMIT_S)
def other(ref: str) -> dict[str, int]:
    """Makes the queue known to workers; enqueues name it themselves."""
    return plain(ref)


@app.task(name="chaos.flaky", retry=POLICY, timeout=LIMIT_S)
def flaky(ref: str, fails: int) -> dict[str, int]:
    _begin(ref)
    if current_task().attempt <= fails:
        raise OSError("no luck yet")
    return _effect(ref)


@app.task(name="chaos.failing", retry=POLICY, timeout=LIMIT_S)
def failing(ref: str) -> None:
    _begin(ref)
    raise ValueError("never")


@app.task(name="chaos.poison", retry=POLICY, timeout=LIMIT_S)
def poison(ref: str) -> None:
    _begin(ref)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="chaos.wedge", retry=POLICY, timeout=0.5)
def wedge(ref: str) -> None:
    """Holds the interpreter: its process has to go."""
    _begin(ref)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(30_000_000))


@app.task(name="chaos.odd", retry=POLICY, timeout=LIMIT_S)
def odd(ref: str, megabytes: int) -> Any:
    """A result that cannot be stored: none that JSON knows, or one of many megabytes."""
    _begin(ref)
    _effect(ref)
    return "x" * (megabytes << 20) if megabytes else object()


@app.task(name="chaos.link", retry=POLICY, timeout=LIMIT_S)
def link(chain: str, n: int, last: int, seconds: float = 0, tx: sa.Connection = IN_TRANSACTION) -> dict[str, int]:
    """One link of a chain: its row, the next link and its own success are one transaction."""
    ref = f"{chain}/{n}"
    _begin(ref)
    time.sleep(seconds)
    tx.execute(sa.text("INSERT INTO chaos_links (chain, n) VALUES (:chain, :n)"), {"chain": chain, "n": n})
    if n < last:
        link.using(connection=tx, max_retries=RETRIES, backoff=BACKOFF).enqueue(chain, n + 1, last)
    _ledger().ran("end", ref)
    return {"fence": current_task().fence}


def new(kind: str, ref: str, **options: Any) -> NewTask:
    """A task of ``chaos.KIND`` with what every one of them needs; ``options`` beyond NewTask's go into the payload."""
    known = set(NewTask.__dataclass_fields__)
    payload = {name: value for name, value in options.items() if name not in known}
    if kind != "link":
        payload["ref"] = ref
    given = {"max_retries": RETRIES, "backoff": BACKOFF, **{k: v for k, v in options.items() if k in known}}
    return NewTask(f"chaos.{kind}", payload, **given)


#: What must become of each kind; producers fill in times and chains.
EXPECTED = {
    "plain": Expectation(limit=RETRIES + 1),
    "slow": Expectation(kind="slow", limit=RETRIES + 1),
    "flaky": Expectation(kind="flaky", limit=RETRIES + 1),
    "keyed": Expectation(kind="keyed", limit=RETRIES + 1),
    "odd": Expectation(kind="odd", limit=RETRIES + 1),
    "pruned": Expectation(kind="pruned", limit=RETRIES + 1, prunable=True),
    "failing": Expectation(kind="failing", ends=("dead",), limit=3, effect=False),
    "poison": Expectation(kind="poison", ends=("dead",), limit=2, effect=False),
    "wedge": Expectation(kind="wedge", ends=("dead",), limit=1, most=1, effect=False),
    "nobody": Expectation(kind="nobody", ends=("dead",), most=0, effect=False),
    "corrupt": Expectation(kind="corrupt", ends=("dead",), most=0, effect=False),
    "once": Expectation(kind="once", ends=("done", "dead"), most=1, limit=1),
    "cancelled": Expectation(kind="cancelled", limit=RETRIES + 1),
    "purged": Expectation(kind="cancelled", limit=RETRIES + 1, prunable=True),
    "link": Expectation(kind="link", limit=RETRIES + 1, effect=False),
}
