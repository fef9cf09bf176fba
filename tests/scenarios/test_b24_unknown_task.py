"""B24: a task that this worker does not know waits in sight, or ends dead with the reason; it never vanishes.

Required: with an old and a new worker on one queue every new task runs, and the old one looks at it a few times only.
With old workers alone the tasks wait where people see them and end dead as ``unknown_task`` after a bounded time,
without a run and without a flood of claims or log lines; replayed after the deploy they run. A module of tasks that
cannot be imported is the same case: that worker says so in one line and ends, and the tasks wait.
"""

from __future__ import annotations

import math
import signal
from collections import Counter

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import T_REC, assert_settled, sql
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]

OLD, NEW = "tests.apps.release_old:app", "tests.apps.release_new:app"
COUNT = 50
UNKNOWN_TASK_S = size(5.0, 20.0)
SLOTS = 8


def claims_in(log: str) -> int:
    """How often a worker asked for rows to claim."""
    return sum("SKIP LOCKED" in line and "tandemq_tasks" in line for line in log.splitlines())


def test_old_and_new_workers_on_one_queue(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    old = work.worker("-c", "1", app=OLD).ready()
    new = work.worker("-p", "3", "-c", "4", app=NEW).ready()
    wait_until_blocked(redis_client, old)
    wait_until_blocked(redis_client, new, 3)
    ids = work.ids("brand_new", COUNT)
    assert work.ended(ids) == {"succeeded": COUNT}
    known = work.ids("known", COUNT)
    assert work.ended(known) == {"succeeded": COUNT}
    probe.assert_once([*ids, *known])
    assert {m.pid for m in probe.marks() if m.task_id in set(ids)} <= {child.pid for child in new.children()}
    assert {a for (a,) in sql(work, "SELECT attempts FROM {t}tasks")} == {1}
    for worker in (old, new):
        assert len(worker.text().splitlines()) < 20, worker.text()
    assert_settled(work, probe, [*ids, *known])


def test_old_workers_alone_then_the_deploy(
    work: Bench, probe: Probe, mysql_server: MySQLServer, weather: Weather
) -> None:
    mysql_server.general_log(True)
    old = work.worker("-c", f"{SLOTS}", app=OLD, TANDEMQ_UNKNOWN_TASK_S=f"{UNKNOWN_TASK_S}").ready()
    ids = work.ids("brand_new", COUNT)

    def is_in_sight() -> bool:  # between its pauses, when it is looked at, it is ready for a moment
        task = work.app.get(ids[0])
        assert task is not None
        assert (task.state, task.attempts) == ("scheduled", 0)
        assert "no worker that met it knows the task type brand_new" in (task.last_error or "")
        return "for a worker that knows its type 'brand_new'" in work.app.why(ids[0])

    eventually(is_in_sight, message=old.text)
    met = "SELECT COUNT(*) FROM {t}tasks WHERE error_type = 'UnknownTask'"
    eventually(lambda: sql(work, met) == [(COUNT,)], message=old.text)

    assert work.ended(ids) == {"dead": COUNT}
    created, completed = sql(work, "SELECT MIN(created_at), MAX(completed_at) FROM {t}tasks")[0]
    assert UNKNOWN_TASK_S <= (completed - created).total_seconds() < UNKNOWN_TASK_S + T_REC + weather.slack_s

    mysql_server.general_log(False)
    ended = sql(work, "SELECT dead_reason, error_type, attempts, COUNT(*) FROM {t}tasks GROUP BY 1, 2, 3")
    assert ended == [("unknown_task", "UnknownTask", 0, COUNT)]
    assert probe.starts() == Counter()
    # A look at 0, 1, 2, 4, 8 ... seconds and at the end; over the whole time this is about two claims a second.
    looks = 3 + math.log2(UNKNOWN_TASK_S)
    claims = claims_in(mysql_server.read_general_log())
    # Ids that come back late one by one are claimed one by one: a slow machine makes more claims of the same looks.
    assert 2 * COUNT / SLOTS <= claims <= 1.5 * looks * COUNT / SLOTS * (1 + weather.slack_s), (claims, weather.slack_s)
    assert len(old.text().splitlines()) < COUNT + 20, old.text()

    old.signal(signal.SIGTERM)
    assert old.wait() == 0
    new = work.worker("-c", "4", app=NEW).ready()
    assert work.app.dead.replay(ids).moved == COUNT
    assert work.ended(ids) == {"succeeded": COUNT}
    probe.assert_once(ids)
    (child,) = new.children()
    assert probe.pids() == {child.pid}
    assert_settled(work, probe, ids)


@pytest.mark.parametrize("app", ["tests.apps.release_broken:app", "tests.apps.release_unfinished:app"])
def test_a_module_that_cannot_be_imported(work: Bench, probe: Probe, app: str) -> None:
    """Named by ``imports`` or by -A itself."""
    ids = work.ids("brand_new", 3)
    broken = work.worker("-p", "2", app=app)
    assert broken.wait() == 2
    work.workers.remove(broken)
    said = broken.text().splitlines()
    assert len(said) <= 5, said
    assert any("a_package_that_was_forgotten" in line for line in said), said
    assert work.statuses(ids) == {"pending": 3}
    assert sql(work, "SELECT SUM(attempts), SUM(fence) FROM {t}tasks") == [(0, 0)]
    work.worker(app=NEW).ready()
    assert work.ended(ids) == {"succeeded": 3}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
