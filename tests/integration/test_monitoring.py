"""The page of a real worker: every process on it, equal to what SQL says, and there when a server is not."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from tandemq.core.errors import BrokerUnavailable
from tandemq.core.settings import Settings
from tandemq.monitoring.gauges import GAUGES
from tests.healing import World
from tests.probe import Probe
from tests.servers import ROOT, MySQLServer, RedisServer
from tests.servers.prometheus import Prometheus
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker, bench

ON_PAGE = ("--metrics-port", "0")


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    settings = settings_for(mysql_url, redis_url, mover_s=0.05, reconcile_s=0.5)
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(parsed(text))
        self._samples = [(s.name, s.labels, s.value) for family in self.families for s in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that have these labels; None if there is none."""
        found = [v for n, of, v in self._samples if n == f"tandemq_{name}" and labels.items() <= of.items()]
        return sum(found) if found else None

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Values by these labels."""
        return {tuple(of[x] for x in labels): v for n, of, v in self._samples if n == f"tandemq_{name}"}


def base(worker: Worker) -> str:
    """Where it serves."""
    return eventually(lambda: re.search(r"metrics on (http://\S+)/metrics", worker.text()), 60, worker.text)[1]


def scrape(worker: Worker) -> Page:
    """Its page now."""
    with urllib.request.urlopen(base(worker) + "/metrics", timeout=10) as answer:  # noqa: S310 - our own address
        return Page(answer.read().decode())


def health(worker: Worker, path: str) -> tuple[int, list[str]]:
    """Status and what is wrong."""
    try:
        with urllib.request.urlopen(f"{base(worker)}/health/{path}", timeout=10) as answer:  # noqa: S310 - as above
            return answer.status, json.load(answer)["wrong"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["wrong"]


def sql(work: Bench, text: str) -> list[tuple[object, ...]]:
    table = work.app.store.sql.counts
    return [tuple(row) for row in work.app.store.db.read(lambda tx: tx.rows(text.replace("COUNTS", table)))]


def counted(work: Bench) -> dict[tuple[str, ...], int]:
    rows = sql(work, "SELECT queue, task_type, outcome, SUM(n) FROM COUNTS GROUP BY 1, 2, 3")
    return {(str(q), str(t), str(o)): int(n) for q, t, o, n in rows}  # type: ignore[call-overload]


def test_the_page_of_two_children_says_what_sql_says(work: Bench) -> None:
    worker = work.worker("-c", "4", "-p", "2", *ON_PAGE).ready()
    ids = [
        *work.ids("noop", 200),
        *work.ids("noop", 3, delay=0.3),
        work.app.enqueue("flaky", {"fails": 2}).id,
        work.app.enqueue("final", {}).id,
        work.app.enqueue("fail", {}, max_retries=1).id,
    ]
    later = work.ids("noop", 7, delay=3600, priority="high")
    assert work.ended(ids) == {"succeeded": 204, "dead": 2}
    # Last of all: whatever else runs in its process is lost with it.
    assert work.ended([work.app.enqueue("poison", {}, max_retries=0).id]) == {"dead": 1}
    expected = counted(work)

    def agrees() -> Page | None:
        page = scrape(worker)
        shown = page.by("task_outcomes_total", "queue", "type", "outcome")
        return page if {key: n for key, n in shown.items() if n} == expected else None

    page = eventually(agrees, 30)

    finished = page.by("finished_total", "queue", "type", "outcome")
    finished = {key: n for key, n in finished.items() if key[2] != "released"}
    poison = {("default", "poison", "dead"): 1}  # it ended with its process: no flush was there to count it
    assert finished | poison == expected
    assert page.by("dead_total", "type", "reason") == {
        ("final", "non_retryable"): 1, ("fail", "retries_exhausted"): 1, ("poison", "lease_lost"): 1,
    }  # fmt: skip
    assert page.value("claimed_total") == 210 + (page.value("finished_total", outcome="released") or 0)
    assert page.value("run_seconds_count") == page.value("queue_latency_seconds_count") == 209
    assert page.value("open_tasks", queue="default", priority="20", state="scheduled") == len(later)
    assert page.value("open_tasks", state="ready") == page.value("open_tasks", state="running") == 0
    assert page.value("redis_ids", priority="20", state="delayed") == len(later)
    assert page.value("dead_tasks") == 3
    assert page.value("slots", state="free") == 8
    assert page.value("slots", state="busy") == 0
    assert page.value("workers", state="running") == 1
    assert page.value("worker_slots", state="running") == 8
    assert page.value("database_up") == page.value("redis_up") == 1
    assert page.value("mover_lag_seconds") is not None
    assert page.value("unled_seconds", role="mover") == page.value("unled_seconds", role="reconciler") == 0
    assert page.value("reconciler_pass_age_seconds") is not None
    assert {label for (label,) in page.by("loop_age_seconds", "loop")} == {
        "heartbeat", "lease-ender", "mover", "reconciler",
    }  # fmt: skip
    for family in page.families:
        if family.name.startswith("tandemq_"):
            assert family.documentation
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_killed_child_loses_no_count_and_adds_no_file(work: Bench, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    worker = work.worker("-c", "2", *ON_PAGE, TMPDIR=str(tmp_path / "t")).ready()
    first = work.ids("noop", 20)
    assert work.ended(first) == {"succeeded": 20}
    done = {"queue": "default", "type": "noop", "outcome": "succeeded"}
    eventually(lambda: scrape(worker).value("finished_total", **done) == 20, 30)
    (folder,) = (tmp_path / "t").glob("tandemq-metrics-*")

    for n in (1, 2):
        (child,) = worker.children()
        files = sorted(path.name for path in folder.iterdir())
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda dead=child.pid: [c for c in worker.children() if c.pid != dead], 60)
        assert work.ended(work.ids("noop", 10)) == {"succeeded": 10}
        eventually(lambda n=n: scrape(worker).value("finished_total", **done) == 20 + 10 * n, 30)
        assert sorted(path.name for path in folder.iterdir()) == files

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not folder.exists()


def test_a_lease_that_is_lost_is_counted_from_zero_and_a_folder_left_behind_goes_with_the_next(
    work: Bench, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    worker = work.worker("-c", "2", *ON_PAGE, TMPDIR=str(tmp_path / "t")).ready()
    assert scrape(worker).value("leases_lost_total") == 0
    work.app.enqueue("hold", {"until": str(tmp_path / "gate")})
    eventually(lambda: scrape(worker).value("slots", state="busy") == 1, 60)
    (child,) = worker.children()
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: scrape(worker).value("leases_lost_total") == 1, 60)
    worker.kill_group()
    (left,) = (tmp_path / "t").glob("tandemq-metrics-*")
    second = work.worker("-c", "2", *ON_PAGE, TMPDIR=str(tmp_path / "t")).ready()
    (own,) = (tmp_path / "t").glob("tandemq-metrics-*")
    assert own != left
    assert scrape(second).value("leases_lost_total") == 0


def test_levels_are_seen_while_they_last(work: Bench, tmp_path: Path) -> None:
    worker = work.worker("-c", "2", *ON_PAGE).ready()
    gate = tmp_path / "gate"
    held = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(2)]
    eventually(lambda: work.statuses(held) == {"running": 2}, 60)
    waiting = work.ids("noop", 5)

    def seen() -> Page | None:
        page = scrape(worker)
        busy = page.value("slots", state="busy") == 2 and page.value("slots", state="free") == 0
        return page if busy and page.value("open_tasks", state="ready") == 5 else None

    page = eventually(seen, 30)
    assert page.value("open_tasks", state="running") == 2
    before = page.value("oldest_ready_seconds", queue="default") or 0
    assert before > 0
    eventually(lambda: (scrape(worker).value("oldest_ready_seconds", queue="default") or 0) > before + 0.5, 30)
    gate.touch()
    assert work.ended([*held, *waiting]) == {"succeeded": 7}
    page = scrape(worker)
    assert page.value("queue_latency_seconds_sum", queue="default") > before


def test_a_page_with_a_server_away_comes_within_two_seconds_and_says_so(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], own_redis: Callable[..., RedisServer],
    tmp_path: Path, probe: Probe, weather: Weather,
) -> None:  # fmt: skip
    mysql, redis = own_mysql(), own_redis()
    settings = settings_for(mysql.url(mysql.create_database()), redis.url(), mover_s=0.05, reconcile_s=0.5)

    def timed() -> tuple[Page, float]:
        began = time.monotonic()
        page = scrape(worker)
        return page, time.monotonic() - began

    with bench(settings, tmp_path, probe.environ) as work:
        worker = work.worker("-c", "2", *ON_PAGE).ready()
        eventually(lambda: health(worker, "ready") == (200, []), 60)
        for server, up, other, name in (
            (redis, "redis_up", "database_up", "redis"), (mysql, "database_up", "redis_up", "database"),
        ):  # fmt: skip
            server.sigstop()
            time.sleep(1.2)  # until the last answer is old
            page, took_s = timed()
            assert took_s < 2.0 + weather.slack_s
            assert page.value(up) == 0
            assert page.value(other) == 1
            assert f"{name} does not answer" in health(worker, "ready")[1]
            assert health(worker, "live")[0] == 200
            server.sigcont()
            eventually(lambda up=up: scrape(worker).value(up) == 1, 60)
        redis.kill9()
        eventually(lambda: (scrape(worker).value("redis_errors_total") or 0) > 0, 30)
        eventually(lambda: scrape(worker).value("redis_up") == 0, 30)
        redis.start()
        mysql.kill9()
        eventually(lambda: (scrape(worker).value("database_errors_total", **{"class": "gone"}) or 0) > 0, 30)
        mysql.start()
        eventually(lambda: health(worker, "ready") == (200, []), 90)


def test_a_pass_is_good_only_with_redis_and_only_of_the_one_that_leads(fast_world: World) -> None:
    reconciler = fast_world.reconciler(lead=True)
    assert reconciler.last_pass_at is None
    reconciler.step()
    first = reconciler.last_pass_at
    assert first == fast_world.clock.monotonic()
    fast_world.clock.advance(5)
    fast_world.broker.dies("mark_install", error=BrokerUnavailable("gone"))
    reconciler.step()
    assert reconciler.last_pass_at == first
    fast_world.clock.advance(60)
    fast_world.reconciler(lead=True).step()
    reconciler.step()
    assert reconciler.last_pass_at is None


@pytest.mark.parametrize("verb", ["mover", "reconcile"])
def test_the_healers_alone_have_a_page_too(work: Bench, verb: str) -> None:
    healer = work.worker(*ON_PAGE, verb=verb)
    work.ids("noop", 3)
    page = eventually(lambda: p if (p := scrape(healer)).value("open_tasks", state="ready") == 3 else None, 60)
    loop = {"mover": "mover", "reconcile": "reconciler"}[verb]
    assert page.value("workers", state="running") == 0
    assert page.value("loop_age_seconds", loop=loop) is not None
    assert page.value("slots") is None
    assert eventually(lambda: health(healer, "ready") == (200, []), 30)
    healer.signal(signal.SIGTERM)
    assert healer.wait() == 0


def test_what_is_known_of_the_install_can_be_left_out(work: Bench) -> None:
    worker = work.worker("--no-install-metrics", *ON_PAGE).ready()
    page = scrape(worker)
    install = {name for name, gauge in GAUGES.items() if gauge.scope == "install"}
    assert not install & {family.name for family in page.families}
    assert page.value("slots", state="free") == 8


def test_a_port_that_is_taken_is_a_fault_that_names_it(work: Bench) -> None:
    port = base(work.worker("-c", "1", *ON_PAGE).ready()).rsplit(":", 1)[1]
    second = work.worker("--metrics-port", port)
    assert second.wait(60) == 2
    assert f"--metrics-port {port}: " in second.text()


@pytest.mark.prometheus
def test_a_real_prometheus_sees_what_sql_says_and_no_alert_fires(work: Bench) -> None:
    workers = [work.worker("-c", "4", *ON_PAGE).ready() for _ in range(2)]
    prometheus = Prometheus([base(w).removeprefix("http://") for w in workers], [ROOT / "deploy/prometheus/alerts.yml"])
    prometheus.start()
    try:
        ids = [*work.ids("noop", 300), *[work.app.enqueue("flaky", {}).id for _ in range(10)]]
        ids += [work.app.enqueue("final", {}).id for _ in range(3)]
        work.ids("noop", 4, delay=3600)
        assert work.ended(ids) == {"succeeded": 310, "dead": 3}
        expected = counted(work)

        def totals(expression: str) -> dict[tuple[str, ...], float]:
            found = prometheus.query(expression)
            return {(of["queue"], of["type"], of["outcome"]): n for of, n in found if n}

        eventually(
            lambda: totals("max by (queue, type, outcome) (tandemq_task_outcomes_total)") == expected, 60, every_s=0.5
        )
        # What each worker counted adds up to the same.
        mine = 'sum by (queue, type, outcome) (tandemq_finished_total{outcome!="released"})'
        eventually(lambda: totals(mine) == expected, 30, every_s=0.5)
        ((_, later),) = prometheus.query('sum(max by (queue, priority) (tandemq_open_tasks{state="scheduled"}))')
        assert later == 4
        ((_, alive),) = prometheus.query('max(tandemq_workers{state="running"})')
        assert alive == 2
        (group,) = prometheus.ask("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}

        def pending() -> set[str]:  # before the first scrape there was no worker
            (group,) = prometheus.ask("rules")["groups"]
            return {rule["name"] for rule in group["rules"] if rule["state"] != "inactive"}

        eventually(lambda: not pending(), 30, pending, every_s=0.5)
        assert {target["health"] for target in prometheus.ask("targets")["activeTargets"]} == {"up"}
    finally:
        prometheus.discard()
