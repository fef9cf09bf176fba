"""The counters are really called where things happen, and say what SQL says: read from the files of every process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, multiprocess

from tandemq import NewTask, metrics
from tandemq.core.settings import Settings
from tests.healing import World
from tests.probe import Probe
from tests.waiting import eventually
from tests.workers import Bench, bench


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, mover_s=0.05, reconcile_s=0.5), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metrics").mkdir()
    return tmp_path / "metrics"


def read(folder: Path, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """The samples of a counter or histogram, added up over the processes."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(folder))
    found: Counter[tuple[str, ...]] = Counter()
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == f"tandemq_{name}":
                found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return found


def counted(work: Bench) -> Counter[tuple[str, ...]]:
    table = work.app.store.sql.counts
    rows = work.app.store.db.read(
        lambda tx: tx.rows(f"SELECT queue, task_type, outcome, SUM(n) FROM {table} GROUP BY 1, 2, 3")
    )
    return Counter({(queue, kind, outcome): int(n) for queue, kind, outcome, n in rows})


def test_a_worker_counts_what_the_database_counts(work: Bench, probe: Probe, folder: Path) -> None:
    work.worker("-c", "4", PROMETHEUS_MULTIPROC_DIR=str(folder)).ready()
    ids = [
        *work.ids("noop", 30),
        *work.ids("noop", 5, delay=0.3),
        work.app.enqueue("flaky", {"fails": 2}).id,
        work.app.enqueue("final", {}).id,
        work.app.enqueue("fail", {}, max_retries=1).id,
    ]
    assert work.ended(ids, 60) == {"succeeded": 36, "dead": 2}

    expected = counted(work)
    assert expected["default", "noop", "succeeded"] == 35
    eventually(lambda: read(folder, "finished_total", "queue", "type", "outcome") == expected, 30)
    assert read(folder, "claimed_total", "queue", "type")["default", "noop"] >= 35
    assert read(folder, "retried_total", "type", "attempt") == {
        ("flaky", "1"): 1, ("flaky", "2"): 1, ("fail", "1"): 1,
    }  # fmt: skip
    assert read(folder, "dead_total", "type", "reason") == {
        ("final", "non_retryable"): 1, ("fail", "retries_exhausted"): 1,
    }  # fmt: skip
    assert read(folder, "promoted_total", "queue")["default",] >= 1  # others may come by the first rebuild
    assert read(folder, "finish_seconds_count")[()] == read(folder, "finish_batch_size_count")[()] > 0
    assert read(folder, "claim_seconds_count")[()] > 0


def test_a_task_that_dies_with_its_process_is_counted_by_the_supervisor(work: Bench, folder: Path) -> None:
    work.worker("-c", "1", PROMETHEUS_MULTIPROC_DIR=str(folder)).ready()
    poison = work.app.enqueue("poison", {}, max_retries=1)
    assert work.ended([poison.id], 60) == {"dead": 1}
    eventually(lambda: read(folder, "dead_total", "type", "reason") == {("poison", "lease_lost"): 1}, 30)
    assert read(folder, "retried_total", "type", "attempt") == {("poison", "1"): 1}


def test_the_reconciler_counts_what_it_ends(fast_world: World) -> None:
    registry = metrics.registry()
    assert registry is not None

    def now() -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for metric in registry.collect():
            for s in metric.samples:
                if s.name in {"tandemq_retried_total", "tandemq_dead_total"} and s.labels["type"] == "noop":
                    found[s.name, s.labels.get("attempt") or s.labels["reason"]] += int(s.value)
        return found

    before, reconciler = now(), fast_world.reconciler()
    for max_retries in (3, 3, 0):
        fast_world.claim(fast_world.insert(max_retries=max_retries))
    fast_world.insert(expires_s=1.0)
    fast_world.arm(reconciler)
    fast_world.passes(reconciler, 2)

    assert now() - before == {
        ("tandemq_retried_total", "1"): 2,
        ("tandemq_dead_total", "lease_lost"): 1,
        ("tandemq_dead_total", "expired"): 1,
    }


def test_a_producer_counts_what_it_stored_and_pushed(work: Bench) -> None:
    registry = metrics.registry()
    assert registry is not None

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"tandemq_{name}_total", labels) or 0.0

    queue = work.settings.namespace.replace(":", "-")
    stored, pushed = value("enqueued", queue=queue, type="noop"), value("pushed", queue=queue)
    work.app.enqueue("noop", {"n": 1}, queue=queue)
    work.app.enqueue_many([NewTask("noop", {"n": n}, queue=queue) for n in range(10)])
    work.app.enqueue("noop", {"n": 2}, queue=queue, delay=60)
    for _ in range(2):
        work.app.enqueue("noop", {"n": 3}, queue=queue, idempotency_key="once")

    assert value("enqueued", queue=queue, type="noop") - stored == 13
    assert value("pushed", queue=queue) - pushed == 13
