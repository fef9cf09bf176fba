"""What is timed at each size: drain, claim, finish, reconcile pass, list pages; in this process but for the drain."""
# ruff: noqa: S608 - SQL from constants and integers

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import marks
from benchmarks.figures import percentile
from benchmarks.measure import Round
from benchmarks.scale.fill import Filler
from tandemq import NewTask, TandemQ
from tandemq.core import ids
from tandemq.core.clock import SystemClock
from tandemq.core.lifecycle import Succeed
from tandemq.core.task import Level
from tandemq.reconciler import Reconciler
from tandemq.store.answers import Filter, Settlement

BATCH, BATCHES = 200, 150
DRAINS, PASSES, PAGES = 3, 5, 5
PAGE = 50
#: The pending rows that are drained must be done by then.
PENDING_S = 300.0
LEVELS = [Level("default", priority) for priority in (30, 20, 10, 0)]
Row = dict[str, float]


def probe(one: Round, app: TandemQ, filler: Filler, *, drain: int, pending: bool = False) -> Row:
    """One line of the table. With ``pending`` the tasks that wait are drained, else ``drain`` new ones, three times."""
    out: Row = {}
    if pending:
        out["drain"] = _drain_pending(one, drain)
    else:
        out["drain"] = statistics.median(_drain(one, filler, drain) for _ in range(DRAINS))
        app.enqueue_many([NewTask("noop", {"order_id": i}) for i in range(BATCH * BATCHES)])
    out.update(_claims(app))
    out.update(_reconcile(app))
    out.update(_pages(app, filler.last_id()))
    return out


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def _claims(app: TandemQ) -> Row:
    """A worker's loop through the public store and broker: pop, claim, finish, a batch at a time; ms."""
    claims, finishes = [], []
    for token in range(1, BATCHES + 1):
        popped = app.broker.pop(LEVELS, limit=BATCH, wait_s=0)
        start = time.perf_counter()
        claimed = app.store.claim(
            list(popped.ids),
            token=token,
            worker_id="bench",
            lease_s=600,
            free=BATCH,
            known={"noop"},
            unknown_task_s=60,
        )
        middle = time.perf_counter()
        if not claimed.leases:
            raise RuntimeError(f"nothing was claimed of {len(popped.ids)} ids")
        app.store.finish([Settlement(x, Succeed(None)) for x in claimed.leases], closing={token}, worker_id="bench")
        claims.append(1000 * (middle - start))
        finishes.append(1000 * (time.perf_counter() - middle))
    return {
        "claim_p50_ms": percentile(claims, 50),
        "claim_p95_ms": percentile(claims, 95),
        "finish_p95_ms": percentile(finishes, 95),
    }


def _reconcile(app: TandemQ) -> Row:
    """Passes as ``tandemq reconcile --once`` makes them, without the start of its process."""
    holder = ids.worker_id("bench")
    service = Reconciler(app.store, app.broker, SystemClock(), ids.new_random(), app.settings, holder)
    took = [_timed(service.run_once) for _ in range(PASSES)]
    return {"reconcile_ms": statistics.median(took), "reconcile_max_ms": max(took)}


def _pages(app: TandemQ, last_id: int) -> Row:
    """``tandemq list`` as a program calls it: pages of 50, newest first; the last one by its keyset."""
    asked: dict[str, tuple[Filter, int | None]] = {
        "first": (Filter(), None),
        "last": (Filter(), min(PAGE + 1, last_id + 1)),
        "succeeded": (Filter(state="succeeded"), None),
        "succeeded_last": (Filter(state="succeeded"), min(PAGE + 1, last_id + 1)),
        "dead": (Filter(state="dead"), None),
        "ready": (Filter(state="ready"), None),
        "queue": (Filter(queue="reports"), None),
        "type": (Filter(task_type="type3"), None),
        "rare_type": (Filter(task_type="rare"), None),
    }
    out = {}
    for name, (where, after) in asked.items():
        find = partial(app.admin.find, where, limit=PAGE, after=after)
        out[f"page_{name}_ms"] = statistics.median(_timed(find) for _ in range(PAGES))
    out["stats_ms"] = statistics.median(_timed(app.stats) for _ in range(PAGES))
    return out


def _drain(one: Round, filler: Filler, count: int) -> float:
    start, ran = filler.last_id(), marks.read(one.folder)[0]
    one.drive(("bulk", count))
    with one.worker():
        one.wait(ran + count)
    return _rate(one, f"id > {start}")


def _drain_pending(one: Round, count: int) -> float:
    """Until so many of those that wait are done; the worker is then stopped in order."""
    ran = marks.read(one.folder)[0]
    ((since,),) = one.sql("SELECT UTC_TIMESTAMP(6)")
    deadline = time.monotonic() + PENDING_S
    with one.worker():
        while marks.read(one.folder)[0] < ran + count:
            if time.monotonic() > deadline:
                raise RuntimeError("the drain of pending rows is too slow")
            time.sleep(0.05)
    return _rate(one, f"started_at >= '{since}'")


def _rate(one: Round, condition: str) -> float:
    ((n, seconds),) = one.sql(
        "SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(started_at), MAX(completed_at)) / 1e6"
        f" FROM tandemq_tasks WHERE {condition} AND status = 'succeeded'"
    )
    return int(n) / float(seconds)
