"""B16: a lease that is shorter than the task runs the task twice, unless it is renewed; bad combinations are refused.

Required: settings under which a lease could run out between two renewals are refused at start, with exit code 2 and a
message that names both numbers. With settings that are accepted, a task may run several times as long as its lease,
and have any time limit, and runs once: whether it sleeps, awaits, or holds the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, assert_settled, sql
from tests.weather import Weather
from tests.workers import APP, Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

#: (lease, heartbeat); None leaves the default: 30 and 5.
REFUSED = [("3", "10"), ("3", None), (None, "20"), ("4", "2.1"), ("5", "5"), ("0.5", "0.3")]
DEFAULTS = {"LEASE_S": "30", "HEARTBEAT_S": "5"}
#: Longer ones are only tried where the machine stalled for as long as a lease.
LEASES_S = size([1.5, 3.0, 6.0], [3.0, 6.0])
#: So many leases long runs a task.
LENGTH = size(2.7, 3.4)


@pytest.mark.parametrize(("lease", "heartbeat"), REFUSED)
def test_settings_that_cannot_keep_a_lease_are_refused(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, lease: str | None, heartbeat: str | None
) -> None:
    settings = settings_for(mysql_url, redis_url)
    given = {"TANDEMQ_LEASE_S": lease, "TANDEMQ_HEARTBEAT_S": heartbeat}

    answer = tandemq(settings, "-A", APP, "worker", code=2, **{n: v for n, v in given.items() if v is not None})

    (line,) = answer.err.splitlines()
    assert f"TANDEMQ_HEARTBEAT_S={heartbeat or DEFAULTS['HEARTBEAT_S']} " in line
    assert f"TANDEMQ_LEASE_S={lease or DEFAULTS['LEASE_S']}:" in line
    assert answer.out == ""


def test_an_application_that_sets_them_itself_is_refused(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("from tandemq import TandemQ\napp = TandemQ(lease_s=3, heartbeat_s=10)\n")
    settings = settings_for(mysql_url, redis_url)

    answer = tandemq(settings, "-A", "shop:app", "worker", code=2, PYTHONPATH=str(tmp_path))

    assert "TANDEMQ_HEARTBEAT_S=10 " in answer.err
    assert "TANDEMQ_LEASE_S=3:" in answer.err


def long_tasks(work: Bench, seconds: float) -> list[int]:
    """Tasks that take several leases; the limits are far above, one of them above the default of half an hour."""
    news = [
        NewTask("sleep", {"seconds": seconds}, timeout=60),
        NewTask("asleep", {"seconds": seconds}, timeout=3600),
        NewTask("wedge", {"seconds": seconds}, timeout=60),
    ]
    return [handle.id for handle in work.app.enqueue_many(news)]


def test_a_task_that_outlives_its_lease_runs_once(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    weather: Weather,
) -> None:
    for lease_s in LEASES_S:
        settings = settings_for(mysql_url, redis_url, **(PACE | {"lease_s": lease_s, "heartbeat_s": lease_s / 3}))
        with bench(settings, tmp_path, probe.environ) as work:
            work.worker("-c", "4").ready()
            ids = long_tasks(work, LENGTH * lease_s)
            ended = work.ended(ids)
            starts = probe.starts()
            if weather.slack_s > lease_s and lease_s != LEASES_S[-1] and any(starts[i] != 1 for i in ids):
                probe.path.unlink()
                continue  # so long a stall may cost a lease
            assert ended == {"succeeded": 3}
            probe.assert_once(ids)
            took = [end.at - start.at for start, end in zip(probe.marks("start"), probe.marks("end"), strict=True)]
            assert min(took) > 2 * lease_s
            tasks = sql(work, "SELECT attempts, fence FROM {t}tasks WHERE id >= :first", first=min(ids))
            assert tasks == [(1, 1)] * 3
            assert_settled(work, probe, ids)
            return
