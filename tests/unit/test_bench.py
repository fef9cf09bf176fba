"""The bench's pace, its sentences, its settings: without servers and without waiting."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from tandemq.bench.pace import Pace, at_once, each_call, in_a_row
from tandemq.bench.report import Figures, Report
from tandemq.bench.run import Plan, own_settings
from tandemq.core.settings import Settings
from tandemq.testing import FakeClock

FIGURES = Figures(
    database_round_trip_ms=0.1,
    redis_round_trip_ms=0.05,
    commit_ms=0.3,
    commits_per_s=3000.0,
    enqueue_per_s=1000.0,
    enqueue_threads_per_s=9000.0,
    enqueue_many_per_s=40_000.0,
    drain_per_s=36_280.4,
    latency_p50_ms=3.59,
    latency_p99_ms=12.4,
)
REPORT = Report(
    figures=FIGURES,
    database="MariaDB 10.11.19",
    unsafe="",
    embedded=False,
    tasks=20_000,
    processes=2,
    slots=8,
    cores=2,
    load=0.4,
    took_s=18.21,
)


# pace


def test_calls_are_timed_one_by_one_until_the_number_is_reached() -> None:
    clock = FakeClock()
    waits = iter([0.5, 0.25, 1.0, 9.0])

    assert each_call(lambda: clock.advance(next(waits)), clock, n=3, within_s=60) == [0.5, 0.25, 1.0]


def test_no_call_begins_after_the_time_is_over_but_one_is_always_made() -> None:
    clock = FakeClock()

    assert each_call(lambda: clock.advance(2.0), clock, n=100, within_s=5.0) == [2.0, 2.0, 2.0]
    assert each_call(lambda: clock.advance(9.0), clock, n=100, within_s=5.0) == [9.0]


def test_a_row_of_calls_counts_on_and_counts_its_units() -> None:
    clock = FakeClock()
    seen: list[int] = []

    def call(at: int) -> None:
        seen.append(at)
        clock.advance(0.5)

    assert in_a_row(call, clock, n=3500, within_s=60, step=1000) == Pace(3000, 1.5)
    assert seen == [0, 1000, 2000]
    assert Pace(3000, 1.5).per_s == 2000
    assert in_a_row(call, clock, n=0, within_s=60) == Pace(1, 0.5), "a rate of nothing would be no rate"


def test_threads_share_the_calls_and_make_each_of_them_once() -> None:
    seen: list[int] = []

    pace = at_once(seen.append, FakeClock(), n=1000, within_s=60, threads=7)

    assert sorted(seen) == list(range(1000))
    assert pace.n == 1000


def test_threads_end_when_the_time_is_over() -> None:
    clock = FakeClock()

    pace = at_once(lambda _: clock.advance(1.0), clock, n=1000, within_s=5.0, threads=4)

    assert 5 <= pace.n <= 5 + 4


def test_the_error_of_a_thread_ends_the_others_and_is_raised() -> None:
    reached = threading.Event()

    def call(i: int) -> None:
        if i == 1:
            raise ConnectionError("away")
        reached.set()

    with pytest.raises(ConnectionError, match="away"):
        at_once(call, FakeClock(), n=10**9, within_s=60, threads=2)

    assert reached.is_set()


def test_an_interrupt_waits_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, joined = threading.Event(), []
    join = threading.Thread.join

    def interrupted_once(self: threading.Thread, timeout: float | None = None) -> None:
        if not joined:
            joined.append(self)
            begun.wait(30)
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        at_once(lambda _: begun.set(), FakeClock(), n=10**9, within_s=60, threads=3)

    assert [t.name for t in threading.enumerate() if t.name.startswith("tandemq-bench-")] == []


# report


def says(**figures: float) -> str:
    return "\n".join(replace(REPORT, figures=replace(FIGURES, **figures)).says())


def test_the_table_has_every_figure() -> None:
    rows = dict(REPORT.rows())

    assert rows["commit of one row, bare"] == "0.30 ms, 3,000 /s"
    assert rows["drain, 2 x 8 slots, no-op tasks"] == "36,280 /s"
    assert rows["enqueue to start, idle worker, p50"] == "3.59 ms"
    assert rows["enqueue to start, idle worker, p99"] == "12 ms"
    assert len(rows) == 9


def test_a_slow_disk_is_named_as_what_decides() -> None:
    text = says(commit_ms=4.1, database_round_trip_ms=0.2)

    assert "A commit takes 4.10 ms, 0.20 ms of it on the way: the database's disk decides" in text


def test_a_far_database_is_named_as_what_decides() -> None:
    text = says(commit_ms=9.0, database_round_trip_ms=7.5)

    assert "The database is 7.50 ms away, its commits take 1.50 ms more: the way to it decides" in text


def test_near_and_quick_is_said_too() -> None:
    assert "A commit takes 0.30 ms: neither disk nor network holds up an enqueue." in says()


def test_a_commit_that_is_measured_shorter_than_its_round_trip_is_no_negative_time() -> None:
    assert "its commits take 0.00 ms more" in says(commit_ms=1.9, database_round_trip_ms=2.0)


def test_the_gain_of_threads_is_told_either_way() -> None:
    assert "32 threads enqueue 9.0 times as fast as one: calls at the same time share a commit." in says()
    assert "1.1 times as fast as one: something else" in says(enqueue_threads_per_s=1100.0)


def test_a_server_that_may_forget_what_it_committed_is_named() -> None:
    text = "\n".join(replace(REPORT, unsafe="innodb_flush_log_at_trx_commit = 2").says())

    assert "may be lost in a crash of the server (innodb_flush_log_at_trx_commit = 2)" in text
    assert "may be lost" not in says()


def test_it_says_where_it_measured() -> None:
    assert next(REPORT.says()) == "Measured from here on MariaDB 10.11.19, with 20,000 tasks."
    assert "embedded default (SQLite 3.40.1" in next(replace(REPORT, embedded=True, database="SQLite 3.40.1").says())


def test_a_busy_machine_and_idle_cores_are_told() -> None:
    busy = "\n".join(replace(REPORT, load=6.4).says())
    idle = "\n".join(replace(REPORT, cores=8).says())

    assert "busy when the run began (load 6.4 on 2 cores)" in busy
    assert "2 of 8 cores here: more --processes" in idle
    assert "cores" not in says()


def test_the_json_has_figures_about_and_sentences() -> None:
    document = json.loads(json.dumps(REPORT.to_json()))

    assert set(document) == {"figures", "about", "says"}
    assert set(document["figures"]) == set(Figures.__slots__)
    assert document["figures"]["drain_per_s"] == 36280.4
    assert document["about"] == {
        "database": "MariaDB 10.11.19", "unsafe": "", "embedded": False, "tasks": 20_000, "processes": 2, "slots": 8,
        "cores": 2, "load": 0.4, "took_s": 18.2,
    }  # fmt: skip
    assert document["says"] == list(REPORT.says())


# settings


def test_a_run_has_the_same_servers_and_names_of_its_own() -> None:
    given = Settings.load(
        {}, database_url="mysql://h/shop", redis_url="redis://h/1", lease_s=20.0, crash="pop.after:1:exit"
    )

    first, second = own_settings(given), own_settings(given)

    assert replace(first, namespace="tandemq", table_prefix="tandemq_", crash=given.crash) == given
    assert first.table_prefix.startswith("tandemq_bench_")
    assert first.namespace.startswith("tandemq-bench-")
    assert first.crash == ""
    assert Settings.load(first.environ()) == first, "they are allowed as settings"
    assert (first.table_prefix, first.namespace) != (second.table_prefix, second.namespace)


@pytest.mark.parametrize(("tasks", "samples"), [(100, 10), (200, 10), (1000, 50), (2000, 100), (10**6, 100)])
def test_a_small_run_has_few_samples(tasks: int, samples: int) -> None:
    assert Plan(tasks, 1, 1).samples == samples
