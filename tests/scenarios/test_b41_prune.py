"""B41: retention removes very many rows beside workers and producers, who do not notice, and never a dead one.

Scaled down, what is asserted is that nothing waits for a lock (no 1205, no 1213), how many rows a transaction removes,
and how many are read where nothing is old. At full size, times are asserted too.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from tandemq.core.ids import lease_token
from tandemq.core.lifecycle import Status, Succeed
from tandemq.core.task import NewRow
from tandemq.pruning import BATCH
from tandemq.store import SqlStore, connect
from tandemq.store.answers import PruneRule, Settlement
from tests.bulk import Volume, fill
from tests.probe import Probe
from tests.scenarios.big import VOLUME, reading
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import FULL, size
from tests.scenarios.truth import assert_settled, row_count, sql
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import ROOT, Bench, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

OLD = size(
    Volume(done=6_000, dead=200, ready=0, newest_days=8), Volume(done=300_000, dead=20_000, ready=0, newest_days=8)
)
PRUNE = ("prune", "--older-than", "7d")


class Busy:
    """A producer that enqueues one by one, and a worker by hand whose claims are timed."""

    def __init__(self, work: Bench) -> None:
        self._work, self._over = work, threading.Event()
        self.ids: list[int] = []
        self.enqueues: list[float] = []
        self.claims: list[float] = []
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._repeat, args=(act,)) for act in (self._enqueue, self._claim)]

    def _repeat(self, act: Any) -> None:
        store = connect(self._work.settings)
        try:
            while not self._over.is_set():
                act(store)
        except BaseException as error:
            self._errors.append(error)
        finally:
            store.close()

    def _enqueue(self, _: SqlStore) -> None:
        begun = time.perf_counter()
        handle = self._work.app.enqueue("noop", {})
        self.enqueues.append(time.perf_counter() - begun)
        self.ids.append(handle.id)

    def _claim(self, store: SqlStore) -> None:
        rows = [NewRow("by.hand", "{}", "by-hand", 0, 0)] * 20
        ids, token = [inserted.id for inserted in store.insert(rows)], lease_token()
        begun = time.perf_counter()
        claimed = store.claim(ids, token=token, worker_id="hand", lease_s=30, free=20, known=None, unknown_task_s=9)
        self.claims.append(time.perf_counter() - begun)
        done = [Settlement(lease, Succeed(None)) for lease in claimed.leases]
        assert len(store.finish(done, closing=[token], worker_id="hand").moved) == 20

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        eventually(lambda: (len(self.ids) > 20 and self.claims) or self._errors, 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self._errors == []


def _troubles(server: MySQLServer) -> dict[str, int]:
    """Deadlocks and lock waits that ran out, ever."""
    names = "('lock_deadlocks', 'lock_timeouts')"
    return dict(server.sql(f"SELECT NAME, COUNT FROM information_schema.innodb_metrics WHERE NAME IN {names}"))


@contextmanager
def _logged(server: MySQLServer) -> Iterator[None]:
    """The general log makes everything slow: not at full size, where time counts."""
    if not FULL:
        server.general_log(True)
    yield
    if not FULL:
        server.general_log(False)


def _removals(server: MySQLServer) -> list[int]:
    """Rows named by each transaction that deleted tasks."""
    sizes, open_for = [], Counter[str]()
    for line in server.read_general_log().splitlines():
        found = re.match(r"(?:\d{6}\s+[\d:]+)?\s+(\d+) Query\s+(.*)", line)
        if found is None:
            continue
        thread, text = found.groups()
        if text.startswith("DELETE t FROM tandemq_tasks"):
            open_for[thread] += text.partition(" IN (")[2].partition(")")[0].count(",") + 1
        elif text.startswith(("COMMIT", "ROLLBACK")) and open_for[thread]:
            sizes.append(open_for.pop(thread))
    assert not +open_for, "a transaction that deleted rows is not committed"
    return sizes


def test_retention_beside_workers_and_a_producer_killed_and_resumed(
    work: Bench, probe: Probe, mysql_server: MySQLServer, redis_client: redis.Redis
) -> None:
    fill(work.settings, OLD)
    work.worker("-p", size("2", "4"), "-c", "4").ready()
    before = _troubles(mysql_server)
    assert set(before) == {"lock_deadlocks", "lock_timeouts"}
    with Busy(work) as busy, _logged(mysql_server):
        killed = subprocess.run(
            [sys.executable, "-m", "tandemq", *PRUNE],
            cwd=ROOT,
            env=environment(work.settings, TANDEMQ_CRASH=f"prune.after_commit:{size(5, 200)}:kill9"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr
        ((left,),) = sql(work, f"SELECT COUNT(*) FROM {{t}}tasks WHERE id <= {OLD.ended}")
        assert left == OLD.ended - size(5, 200) * BATCH
        rest = tandemq(work.settings, *PRUNE, "--json").json
        again = tandemq(work.settings, *PRUNE, "--json").json

    assert (rest["removed"], rest["kept"], rest["complete"]) == (left - OLD.dead, 0, True)
    assert (again["removed"], again["kept"]) == (0, 0)
    assert _troubles(mysql_server) == before, "somebody has waited for a lock in vain"
    assert sql(work, f"SELECT status, COUNT(*) FROM {{t}}tasks WHERE id <= {OLD.ended} GROUP BY status") == [
        ("dead", OLD.dead)
    ]
    ended = tandemq(work.settings, "stats", "--json").json["ended"]
    assert (ended["purged"], ended["dead"]) == (OLD.done, OLD.dead)
    if FULL:
        p99 = {what: _p99(times) for what, times in {"enqueue": busy.enqueues, "claim": busy.claims}.items()}
        print(f"{len(busy.ids)} enqueued; p99 in ms: { {what: round(1000 * t, 1) for what, t in p99.items()} }")
        assert max(p99.values()) < 0.2, p99
    else:
        sizes = _removals(mysql_server)
        assert sum(sizes) == OLD.done
        assert max(sizes) == BATCH
    assert work.ended(busy.ids, 120) == {"succeeded": len(busy.ids)}
    # Nobody serves this queue: what the reconciler pushed of it while it was new is still there.
    redis_client.delete(f"{work.settings.namespace}:{{by-hand}}:ready:0")
    assert_settled(work, probe, busy.ids)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


def test_dead_letters_go_only_when_they_are_named(work: Bench) -> None:
    fill(work.settings, Volume(done=20, dead=10, ready=0, newest_days=8))
    sql(work, "UPDATE {t}tasks SET status = 'cancelled', ended = 3 WHERE id <= 5 AND ended = 1")
    refused = tandemq(work.settings, *PRUNE, "--status", "dead,succeeded", code=2)
    found = tandemq(work.settings, *PRUNE, "--status", "dead", "--dry-run").out
    first = tandemq(work.settings, *PRUNE).out
    status = dict(sql(work, "SELECT status, COUNT(*) FROM {t}tasks GROUP BY status"))
    some = tandemq(work.settings, *PRUNE, "--status", "dead", "--yes", "--limit", "4").out
    rest = tandemq(work.settings, *PRUNE, "--status", "dead", "--yes", "--json").json

    assert "add --yes" in refused.err
    assert re.match(r"10 tasks \(dead\) that ended before \S+Z found\n", found)
    assert re.match(r"20 tasks \(cancelled, succeeded\) that ended before \S+Z removed\n", first)
    assert status == {"dead": 10}
    assert re.match(r"4 tasks .* removed; there may be more: --limit was reached\n", some)
    assert (rest["removed"], rest["complete"], row_count(work)) == (6, True, 0)
    assert "purged" in tandemq(work.settings, "stats").out


def test_where_nothing_is_old_next_to_nothing_is_read(big_store: SqlStore) -> None:
    """However many rows there are; and what is kept (dead, younger) is not looked at by a pass that finds something."""

    def pass_through(days: float) -> int:
        before = big_store.now() - timedelta(days=days)
        rule, found, cursor = PruneRule(before, (Status.CANCELLED, Status.SUCCEEDED)), 0, None
        while True:
            ids, cursor = big_store.prunable(rule, cursor, limit=BATCH)
            found += len(ids)
            if cursor is None:
                return found

    levels = 16
    with reading(big_store, 10 * levels):
        assert pass_through(31) == 0
    most = VOLUME.ended // 10
    with reading(big_store, 3 * most):
        assert VOLUME.done * 0.05 < pass_through(28) < most
