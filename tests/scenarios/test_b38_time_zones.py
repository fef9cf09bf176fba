"""B38: server, workers and producers in three time zones agree about every instant.

Required: with any two of them hours apart, delays, due times and backoff are right within a second, a lease that was
just given stands for its length, neither run out nor endless, a dead worker's tasks are taken over when it has run out,
and API and command line show every time in UTC, marked as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, SLACK, T_REC, assert_settled, lease_ends, sql
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import APP, Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

TOKYO, NEW_YORK, CALCUTTA, UTC_ = "+09:00", "EST5EDT,M3.2.0,M11.1.0", "IST-5:30", "UTC0"
#: The server's default, the workers' TZ, the producers' TZ. As POSIX rules: no zone database is needed.
ZONES = size(
    [(TOKYO, NEW_YORK, CALCUTTA)],
    [(TOKYO, NEW_YORK, CALCUTTA), ("-11:00", CALCUTTA, NEW_YORK), ("+00:00", CALCUTTA, UTC_), ("+05:30", UTC_, UTC_)],
)
DELAY_S, BACKOFF_S = size(2.0, 5.0), size(1.0, 2.0)


@pytest.fixture(params=ZONES, ids=lambda zones: "|".join(zone.split(",")[0] for zone in zones))
def zones(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    made: tuple[str, str, str] = request.param
    return made


@pytest.fixture
def work(
    settings_for: Callable[..., Settings],
    own_mysql: Callable[..., MySQLServer],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    zones: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    server = own_mysql(f"--default-time-zone={zones[0]}")
    assert server.sql("SELECT @@global.time_zone") == [(zones[0],)]
    monkeypatch.setenv("TZ", zones[2])
    time.tzset()
    with bench(settings_for(server.url(server.create_database()), redis_url, **PACE), tmp_path, probe.environ) as made:
        yield made
    monkeypatch.undo()
    time.tzset()


def cli(work: Bench, zones: tuple[str, str, str], *arguments: object) -> Any:
    """Run by somebody in the producers' zone."""
    return tandemq(work.settings, "-A", APP, *arguments, "--json", TZ=zones[2]).json


def by_command(work: Bench, zones: tuple[str, str, str]) -> int:
    """A delayed task; its id."""
    return int(cli(work, zones, "enqueue", "noop", "{}", "--delay", f"{DELAY_S}")["id"])


def by_api(work: Bench, _zones: tuple[str, str, str]) -> int:
    """The same from this process, which lives in the producers' zone."""
    return work.app.enqueue("noop", {}, delay=DELAY_S).id


def assert_now(text: str, since: float) -> None:
    """It says UTC, and an instant between then and now."""
    assert text.endswith("Z"), text
    assert since - 1.0 <= datetime.fromisoformat(text).timestamp() <= time.time() + 1.0, text


def test_times_are_right_whoever_lives_where(
    work: Bench, probe: Probe, zones: tuple[str, str, str], weather: Weather
) -> None:
    began = time.time()
    worker = work.worker("-c", "4", "--name", "east", TZ=zones[1]).ready()
    slack_s = SLACK + weather.slack_s

    due: dict[int, tuple[float, float]] = {}
    for enqueue in (by_command, by_api):
        task_id = enqueue(work, zones)
        ((created,),) = sql(work, "SELECT created_at FROM {t}tasks WHERE id = :id", id=task_id)
        due[task_id] = (created.replace(tzinfo=UTC).timestamp() + DELAY_S, time.time() + DELAY_S)
    for zone in (UTC, timezone(timedelta(hours=9)), timezone(timedelta(hours=-5)), None):
        at = datetime.now(UTC) + timedelta(seconds=DELAY_S)
        by_time = work.app.enqueue("noop", {}, run_at=at.astimezone(zone)).id
        due[by_time] = (at.timestamp(), max(at.timestamp(), time.time()))
    flaky = work.app.enqueue("flaky", {"fails": 1}, backoff=[BACKOFF_S])
    gate = work.folder / "gate"
    running = work.app.enqueue("hold", {"until": str(gate)})
    gone = work.app.enqueue("noop", {}, run_at=datetime.now(UTC) - timedelta(hours=1))
    eventually(lambda: probe.starts()[running.id] == 1, message=worker.text)

    left = sql(work, "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000000 FROM {t}claims")
    assert left
    assert all(-weather.slack_s < float(s) <= work.settings.lease_s for (s,) in left), left
    assert work.ended([*due, flaky.id, gone.id]) == {"succeeded": len(due) + 2}

    for task_id, (earliest, latest) in due.items():
        (start,) = probe.marks("start", task_id)
        assert earliest - 0.01 <= start.at < latest + slack_s
    first, second = probe.marks("start", flaky.id)
    assert 0.8 * BACKOFF_S - 0.01 <= second.at - first.at < 1.2 * BACKOFF_S + slack_s
    assert probe.starts()[running.id] == 1, "its lease looked as if it had run out"

    shown = [cli(work, zones, "show", task_id) for task_id in (flaky.id, running.id)]
    for task in shown:
        for name in ("created_at", "started_at"):
            assert_now(task[name], began)
    assert_now(shown[0]["completed_at"], began)
    for name in ("started_at", "ended_at"):
        assert_now(shown[0]["attempts_log"][0][name], began)
    (listed,) = cli(work, zones, "workers")["items"]
    assert (listed["name"], listed["alive"]) == ("east", True)
    assert_now(listed["heartbeat_at"], began)
    seen = work.app.get(flaky.id)
    assert seen is not None
    assert seen.created_at.utcoffset() == timedelta()
    assert abs(seen.created_at.timestamp() - first.at) < DELAY_S + slack_s

    worker.kill_group()
    killed, ends = time.time(), lease_ends(work, "east")
    other = work.worker("-c", "4", TZ=zones[2]).ready()
    eventually(lambda: probe.starts()[running.id] == 2, message=other.text)
    again = probe.marks("start", running.id)[1].at
    assert ends
    assert ends[0] <= again
    assert again < killed + work.settings.lease_s + T_REC + weather.slack_s
    gate.touch()
    assert work.ended([running.id]) == {"succeeded": 1}
    work.workers.remove(worker)
    assert_settled(work, probe, [*due, flaky.id, running.id, gone.id])
