"""B27: a task enqueued on the caller's own connection lives and dies with the caller's transaction.

Required: while the transaction is open nothing runs, whoever already knows the id; after its commit every task runs
once, within a second or two. After a rollback, or when the caller is killed before its commit, there is no row and
nothing ever runs. When the caller is killed between its commit and the push, everything runs within the recovery time.
Ids whose row cannot be seen are neither an error nor final. The same over a SQLAlchemy Connection, a Session and an
AsyncSession.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.reconciler import Reconciler
from tests import recipes
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled, push_by_hand, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import ROOT, Bench, bench, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_b:app"
KINDS = ("connection", "session", "async")
COUNT = size(15, 100)
OPEN_S = size(1.0, 3.0)


class Caller:
    """A program with a transaction of its own; see ``tests.apps.caller``."""

    def __init__(self, work: Bench, kind: str, count: int | str, **variables: str) -> None:
        with (work.folder / "callers.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.apps.caller", kind, str(count)],
                cwd=ROOT,
                env=environment(work.settings, **variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ids(self) -> list[int]:
        word, listed = self.hear()
        assert word == "ids"
        return [int(task_id) for task_id in listed.split(",")]

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.tell("end")
        assert self.process.wait(90) == 0
        self._close()

    def kill9(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.dies()

    def dies(self) -> None:
        assert self.process.wait(90) == -signal.SIGKILL
        self._close()

    def _close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def discard(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **CALM), tmp_path, probe.environ) as made:
        sql(made, "CREATE TABLE orders (n INT, task_id BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB")
        if recipes.is_limited(made.settings):
            recipes.own_table(partial(sql, made), "orders")
        yield made


@pytest.fixture
def caller(work: Bench) -> Iterator[Callable[..., Caller]]:
    made: list[Caller] = []

    def make(kind: str, count: int | str = COUNT, **variables: str) -> Caller:
        made.append(Caller(work, kind, count, **variables))
        return made[-1]

    yield make
    for one in made:
        one.discard()


def has_run(work: Bench, probe: Probe, **options: object) -> Callable[[], bool]:
    """A task on a connection of its own, and whether it has run: the worker has then seen all that came before it."""
    (task_id,) = work.ids("b.noop", 1, **options)
    return lambda: probe.ends()[task_id] == 1


def is_built(work: Bench) -> bool:
    """The reconciler has seen all of the queue and has marked it in Redis."""
    with redis.Redis.from_url(work.settings.redis_url) as client:
        return b"ready" in (client.get(f"{work.settings.namespace}:{{default}}:generation") or b"")


def stored(work: Bench, ids: list[int]) -> int:
    listed = ",".join(map(str, ids))
    return int(sql(work, f"SELECT COUNT(*) FROM {{t}}tasks WHERE id IN ({listed})")[0][0])


def orders(work: Bench) -> list[int]:
    return [task_id for (task_id,) in sql(work, "SELECT task_id FROM orders ORDER BY task_id")]


def last_start(probe: Probe, ids: list[int]) -> float:
    return max(mark.at for mark in probe.marks("start") if mark.task_id in set(ids))


def test_nothing_runs_before_the_commit_or_after_a_rollback_and_everything_after_a_commit(
    work: Bench, probe: Probe, caller: Callable[..., Caller], weather: Weather
) -> None:
    worker = work.worker("-c", "4", "--no-reconcile", app=APP).ready()  # it would hide a push that is missing
    callers, killed = [caller(kind) for kind in KINDS], [caller(kind) for kind in KINDS]
    never = [task_id for one in [*callers, *killed] for task_id in one.ids()]
    for one in callers:
        one.tell("rollback")
        assert one.hear() == ["rollback"]
    later = {one: one.ids() for one in callers}
    wanted = [task_id for ids in later.values() for task_id in ids]
    push_by_hand(work, [*never, *wanted])  # even if somebody pushed too early

    eventually(has_run(work, probe, delay=OPEN_S), 60, worker.text)

    assert not {*never, *wanted} & set(probe.starts())
    assert stored(work, [*never, *wanted]) == 0
    for one in killed:
        one.kill9()
    for one in callers:
        one.tell("commit")
    for one, ids in later.items():
        word, before, after = one.hear()
        assert word == "commit"
        eventually(lambda ids=ids: set(ids) <= set(probe.ends()), 60, worker.text)
        begun = [mark.at for mark in probe.marks("start") if mark.task_id in set(ids)]
        assert min(begun) >= float(before)
        assert max(begun) <= float(after) + 1.0 + SLACK + weather.slack_s
        one.end()
    healer = Reconciler(work.app.store, work.app.broker, SystemClock(), random.Random(27), work.settings, "healer")
    for _ in range(3):
        healer.run_once()
    push_by_hand(work, never)
    eventually(has_run(work, probe), 60, worker.text)
    starts = probe.starts()
    assert {task_id: starts[task_id] for task_id in never} == dict.fromkeys(never, 0)
    assert {task_id: starts[task_id] for task_id in wanted} == dict.fromkeys(wanted, 1)
    assert stored(work, [*never, *wanted]) == len(wanted)
    assert orders(work) == sorted(wanted)
    assert_settled(work, probe, wanted)
    assert "ERROR" not in worker.text()


def test_a_caller_killed_between_its_commit_and_the_push_has_enqueued(
    work: Bench, probe: Probe, caller: Callable[..., Caller], weather: Weather
) -> None:
    worker = work.worker("-c", "4", app=APP).ready()
    eventually(has_run(work, probe), 60, worker.text)
    eventually(lambda: is_built(work), 60, worker.text)  # so that no rebuilding of Redis finds them by chance
    callers = [caller(kind, TANDEMQ_CRASH="enqueue.after_commit:1:kill9") for kind in KINDS]
    ids = [task_id for one in callers for task_id in one.ids()]
    for one in callers:
        one.tell("commit")
    for one in callers:
        one.dies()
    dead = time.time()

    assert work.ended(ids) == {"succeeded": len(ids)}

    assert last_start(probe, ids) - dead < T_REC + SLACK + weather.slack_s

    starts = probe.starts()
    assert {task_id: starts[task_id] for task_id in ids} == dict.fromkeys(ids, 1)
    assert orders(work) == sorted(ids)
    assert_settled(work, probe, ids)
    assert "ERROR" not in worker.text()


def test_callers_killed_at_any_moment_leave_an_order_for_every_task_and_a_task_for_every_order(
    work: Bench, probe: Probe, caller: Callable[..., Caller], weather: Weather
) -> None:
    chance = random.Random(27)
    worker = work.worker("-c", "4", app=APP).ready()
    said: list[int] = []
    for _ in range(size(1, 10)):
        callers = [caller(kind, "forever") for kind in KINDS]
        for one in callers:
            said += [int(one.hear()[0]) for _ in range(chance.randrange(3, 30))]
            one.kill9()

    def is_over() -> bool:  # the server ends the transactions of the dead in its own time
        mine = sql(work, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0")
        return mine[0][0] == 0

    eventually(is_over, 60, every_s=0.2)  # asked more often, the server answers from an old copy
    ids = [task_id for (task_id,) in sql(work, "SELECT id FROM {t}tasks ORDER BY id")]
    assert orders(work) == ids
    assert set(said) <= set(ids)
    over = time.time()
    assert work.ended(ids) == {"succeeded": len(ids)}
    assert last_start(probe, ids) - over < T_REC + SLACK + weather.slack_s
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
    assert "ERROR" not in worker.text()
