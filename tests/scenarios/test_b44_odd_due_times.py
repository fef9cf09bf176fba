"""B44: odd due times.

Required: a due time is stored as the one right instant in UTC, or refused when the task is enqueued, with a reason and
nothing stored. Times in the past, however far, mean now. A local time that the clocks show twice means two instants an
hour apart; one that they jump over is refused, as is a time without a zone. Whatever was accepted, mover and workers go
on: tasks with ordinary delays still run on time.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
import time
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tandemq import InvalidTask, NewTask
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, SLACK, redis_ids, row_count
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"


def zone(rule: str) -> ZoneInfo:
    """A time zone by its POSIX rule: machines without the zone database have it too."""
    block = struct.pack(">4sc15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, 4) + struct.pack(">lBB4s", 0, 0, 0, b"GMT\0")
    return ZoneInfo.from_file(io.BytesIO(block * 2 + f"\n{rule}\n".encode()))


LONDON = zone("GMT0BST,M3.5.0/1,M10.5.0")
NOW = None
#: (what is asked for, the instant it means; None: now)
ACCEPTED: dict[str, tuple[dict[str, Any], datetime | None]] = {
    "delay 0": ({"delay": 0}, NOW),
    "delay -0.0": ({"delay": -0.0}, NOW),
    "delay of a timedelta of 0": ({"delay": timedelta()}, NOW),
    "year 1": ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, NOW),
    "year 300": ({"run_at": datetime(300, 1, 1, tzinfo=UTC)}, NOW),
    "year 1018": ({"run_at": datetime(1018, 6, 1, tzinfo=UTC)}, NOW),
    "before 1970": ({"run_at": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}, NOW),
    "a second ago": ({"run_at": datetime.now(UTC) - timedelta(seconds=1)}, NOW),
    "far east, long ago": ({"run_at": datetime(1500, 1, 1, tzinfo=timezone(timedelta(hours=14)))}, NOW),
    "2040": (
        {"run_at": datetime(2040, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)},
        datetime(2040, 2, 29, 1, 2, 3, 456789, UTC),
    ),
    "after 2038": (
        {"run_at": datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)},
        datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
    ),
    "9999": ({"run_at": datetime(9999, 12, 29, tzinfo=UTC)}, datetime(9999, 12, 29, tzinfo=UTC)),
    "fold 0": ({"run_at": datetime(2027, 10, 31, 1, 30, tzinfo=LONDON)}, datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
    "fold 1": (
        {"run_at": datetime(2027, 10, 31, 1, 30, tzinfo=LONDON, fold=1)},
        datetime(2027, 10, 31, 1, 30, tzinfo=UTC),
    ),
    "just before the gap": (
        {"run_at": datetime(2027, 3, 28, 0, 59, 59, tzinfo=LONDON)},
        datetime(2027, 3, 28, 0, 59, 59, tzinfo=UTC),
    ),
    "just after the gap": ({"run_at": datetime(2027, 3, 28, 2, tzinfo=LONDON)}, datetime(2027, 3, 28, 1, tzinfo=UTC)),
    "odd offset": (
        {"run_at": datetime(2040, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))},
        datetime(2039, 12, 31, 18, 15, tzinfo=UTC),
    ),
}
REFUSED: dict[str, dict[str, Any]] = {
    "negative delay": {"delay": -1e9},
    "slightly negative delay": {"delay": -1e-9},
    "negative timedelta": {"delay": timedelta(seconds=-1)},
    "delay 1e308": {"delay": 1e308},
    "delay of 400 digits": {"delay": 10**400},
    "delay NaN": {"delay": math.nan},
    "delay infinity": {"delay": math.inf},
    "delay past 9999": {"delay": 3e11},
    "delay as text": {"delay": "5"},
    "delay true": {"delay": True},
    "naive": {"run_at": datetime(2040, 1, 1)},
    "in the gap": {"run_at": datetime(2027, 3, 28, 1, 30, tzinfo=LONDON)},
    "end of 9999": {"run_at": datetime.max.replace(tzinfo=UTC)},
    "before year 1": {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))},
    "after 9999": {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    "date": {"run_at": date(2040, 1, 1)},
    "text": {"run_at": "2040-01-01T00:00:00Z"},
    "number": {"run_at": 2_000_000_000},
    "both": {"delay": 1, "run_at": datetime(2040, 1, 1, tzinfo=UTC)},
    "expires before it starts": {"delay": 10, "expires": 5},
    "expires in year 300": {"expires": datetime(300, 1, 1, tzinfo=UTC)},
    "expires never": {"expires": math.inf},
}
#: Lines of a file: (fields, the instant, or "refused")
LINES: list[tuple[dict[str, Any], datetime | str | None]] = [
    ({"delay": 0}, NOW),
    ({"run_at": "0300-01-01T00:00:00Z"}, NOW),
    ({"run_at": "2040-01-01T00:00:00.000001+05:45"}, datetime(2039, 12, 31, 18, 15, 0, 1, tzinfo=UTC)),
    ({"run_at": "9999-12-29T00:00:00-00:00"}, datetime(9999, 12, 29, tzinfo=UTC)),
    ({"delay": -1}, "refused"),
    ({"delay": "5"}, "refused"),
    ({"delay": True}, "refused"),
    ({"delay": 1e308}, "refused"),
    ({"run_at": "2040-01-01T00:00:00"}, "refused"),
    ({"run_at": "2040-02-30T00:00:00Z"}, "refused"),
    ({"run_at": "10000-01-01T00:00:00Z"}, "refused"),
    ({"run_at": "tomorrow"}, "refused"),
    ({"run_at": ""}, "refused"),
    ({"run_at": 2000000000}, "refused"),
    ({"run_at": "9999-12-31T23:59:59Z"}, "refused"),
]


def test_every_due_time_is_stored_right_or_refused_and_ordinary_delays_keep_their_time(
    work: Bench, probe: Probe, weather: Weather
) -> None:
    worker = work.worker("-c", "4", app=APP).ready()
    began = work.app.store.now()
    made = {name: work.app.enqueue("b.noop", {}, **asked).id for name, (asked, _) in ACCEPTED.items()}
    made |= dict(
        zip(
            [f"{name}, in a batch" for name in ACCEPTED],
            [h.id for h in work.app.enqueue_many([NewTask("b.noop", {}, **asked) for asked, _ in ACCEPTED.values()])],
            strict=True,
        )
    )
    means = {made[name]: instant for name, (_, instant) in ACCEPTED.items()}
    means |= {made[f"{name}, in a batch"]: instant for name, (_, instant) in ACCEPTED.items()}
    before = row_count(work)
    for name, asked in REFUSED.items():
        with pytest.raises((ValueError, TypeError)) as refused:
            work.app.enqueue("b.noop", {}, **asked)
        assert isinstance(refused.value, InvalidTask), name
        assert refused.value.field in asked, name
        assert refused.value.field in str(refused.value), name
    assert row_count(work) == before
    ended = work.app.store.now()

    now = [task_id for task_id, instant in means.items() if instant is None]
    later = [task_id for task_id, instant in means.items() if instant is not None]
    eventually(lambda: set(now) <= set(probe.ends()), message=worker.text)
    for task_id, instant in means.items():
        task = work.app.get(task_id)
        assert task is not None
        if instant is None:
            assert began <= task.run_at <= ended
        else:
            assert (task.run_at, task.state) == (instant, "scheduled")
    eventually(lambda: redis_ids(work) == sorted(later))

    chance = random.Random(44)
    made: dict[int, float] = {}  # id -> when the enqueue had returned
    for _ in range(50):
        handle = work.app.enqueue("b.noop", {}, delay=chance.uniform(0.1, size(1.0, 10.0)))
        made[handle.id] = time.time()
    ordinary = list(made)
    assert work.ended(ordinary) == {"succeeded": 50}
    due = {i: work.app.get(i).run_at.timestamp() for i in ordinary}  # type: ignore[union-attr]
    begun = {mark.task_id: mark.at for mark in probe.marks("start")}
    assert min(begun[i] - due[i] for i in ordinary) >= -0.005
    # One whose enqueue took longer than its delay could not be known when it was due.
    lateness = sorted(begun[i] - max(due[i], made[i]) for i in ordinary)
    assert lateness[-1] <= PACE["mover_s"] + 0.3 + SLACK + weather.slack_s, lateness[-5:]
    probe.assert_once([*now, *ordinary])
    eventually(lambda: redis_ids(work) == sorted(later))
    assert "ERROR" not in worker.text()
    assert "Traceback" not in worker.text()


def test_the_command_line_stores_or_refuses_them_just_so(work: Bench) -> None:
    bodies = [{"type": "b.noop", "payload": {"n": n}, **fields} for n, (fields, _) in enumerate(LINES)]
    lines = "".join(json.dumps(body) + "\n" for body in bodies)
    began = work.app.store.now()
    answer = tandemq(work.settings, "enqueue", "--file", "-", "--keep-going", "--json", stdin=lines, code=1)
    ended = work.app.store.now()
    bad = [n for n, (_, means) in enumerate(LINES) if means == "refused"]
    assert (answer.json["bad"], answer.json["stored"]) == (len(bad), len(LINES) - len(bad))
    for n in bad:
        (said,) = [line for line in answer.err.splitlines() if line.startswith(f"line {n + 1}: ")]
        assert next(iter(LINES[n][0])) in said
    items = tandemq(work.settings, "list", "--json").json["items"]
    stored = {item["payload"]["n"]: datetime.fromisoformat(item["run_at"]) for item in items}
    for n, (_, means) in enumerate(LINES):
        if means is None:
            assert began <= stored[n] <= ended
        elif means != "refused":
            assert stored[n] == means
    for flag in size(("--delay=-5",), ("--delay=-5", "--delay=nan", "--delay=1e308", "--run-at=2040-01-01T00:00:00")):
        answer = tandemq(work.settings, "enqueue", "b.noop", "{}", flag, code=2)
        assert flag.split("=")[0].lstrip("-") in answer.err.replace("run_at", "run-at")
    assert row_count(work) == len(items)
