"""Metrics: counted per batch, bounded, exact with threads and forks, never an error, nothing without the extra."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from tandemq import metrics
from tandemq.ownfolder import PREFIX, own_folder
from tandemq.series import MAX_SERIES, OTHER
from tandemq.timing import MAX_TIMED


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Counts from zero, as in a process that has just started."""
    metrics._forget()
    yield
    metrics._forget()


def value(name: str, **labels: str) -> float | None:
    registry = metrics.registry()
    assert registry is not None
    return registry.get_sample_value(f"tandemq_{name}", labels)


def python(program: str, **environ: str) -> str:
    """What a process of its own prints, on both streams."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def test_every_event_has_its_counter() -> None:
    metrics.enqueued({("mail", "send"): 3, ("mail", "read"): 1})
    metrics.pushed("mail", 4)
    metrics.promoted("mail", 2)
    metrics.repushed("mail", 5)
    metrics.claimed({("mail", "send"): 3}, 0.004)
    metrics.dropped("mail", 6)
    metrics.finished({("mail", "send", "succeeded"): 2, ("mail", "send", "retried"): 1}, 0.03)
    metrics.retried({("send", 1): 1})
    metrics.dead({("send", "timeout"): 7})
    metrics.fenced(8)

    assert value("enqueued_total", queue="mail", type="send") == 3
    assert value("enqueued_total", queue="mail", type="read") == 1
    assert value("pushed_total", queue="mail") == 4
    assert value("promoted_total", queue="mail") == 2
    assert value("repushed_total", queue="mail") == 5
    assert value("claimed_total", queue="mail", type="send") == 3
    assert value("dropped_total", queue="mail") == 6
    assert value("finished_total", queue="mail", type="send", outcome="succeeded") == 2
    assert value("finished_total", queue="mail", type="send", outcome="retried") == 1
    assert value("retried_total", type="send", attempt="1") == 1
    assert value("dead_total", type="send", reason="timeout") == 7
    assert value("fenced_total") == 8


def test_a_claim_and_a_finish_are_one_observation_each_of_size_and_time() -> None:
    metrics.claimed({("a", "t"): 150, ("b", "t"): 50}, 0.004)
    metrics.finished({("a", "t", "succeeded"): 199, ("a", "t", "dead"): 1}, 0.03)

    for what, seconds, within, below in (("claim", 0.004, "0.005", "0.002"), ("finish", 0.03, "0.05", "0.02")):
        assert value(f"{what}_batch_size_count") == 1
        assert value(f"{what}_batch_size_sum") == 200
        assert value(f"{what}_batch_size_bucket", le="200.0") == 1
        assert value(f"{what}_batch_size_bucket", le="100.0") == 0
        assert value(f"{what}_seconds_sum") == seconds
        assert value(f"{what}_seconds_bucket", le=within) == 1
        assert value(f"{what}_seconds_bucket", le=below) == 0


def test_attempts_from_the_tenth_on_are_one_label() -> None:
    metrics.retried({("send", 9): 1, ("send", 10): 2, ("send", 11): 3, ("send", 400): 4})

    assert value("retried_total", type="send", attempt="9") == 1
    assert value("retried_total", type="send", attempt="10+") == 9
    assert value("retried_total", type="send", attempt="10") is None


def test_names_beyond_the_limit_are_counted_together_and_keep_their_outcome() -> None:
    for i in range(MAX_SERIES):
        metrics.finished({(f"q{i}", "send", "succeeded"): 1}, 0.001)
    for i in range(50):
        metrics.finished({(f"tenant{i}", "send", "dead"): 2}, 0.001)
    metrics.finished({("q0", "send", "succeeded"): 1}, 0.001)

    assert value("finished_total", queue="q0", type="send", outcome="succeeded") == 2
    assert value("finished_total", queue="tenant0", type="send", outcome="dead") is None
    assert value("finished_total", queue=OTHER, type=OTHER, outcome="dead") == 100


def test_types_and_attempts_that_other_programs_make_up_are_bounded_too() -> None:
    """Rows of other SQL: any type, any number of attempts."""
    for i in range(3 * MAX_SERIES):
        metrics.dead({(f"junk{i}", "unknown_task" if i % 2 else "expired"): 1})
        metrics.retried({(f"junk{i}", i % 40 - 3): 1})

    registry = metrics.registry()
    assert registry is not None
    for name, labels in (("tandemq_dead", 2), ("tandemq_retried", 11)):
        (metric,) = [m for m in registry.collect() if m.name == name]
        samples = [s for s in metric.samples if s.name == f"{name}_total"]
        assert sum(s.value for s in samples) == 3 * MAX_SERIES
        assert len(samples) <= MAX_SERIES + labels
    assert value("dead_total", type=OTHER, reason="expired") == MAX_SERIES


def test_a_label_set_is_looked_up_in_the_library_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.registry()
    asked: list[tuple[object, ...]] = []
    ask = Counter.labels
    monkeypatch.setattr(Counter, "labels", lambda self, *labels: asked.append(labels) or ask(self, *labels))

    for _ in range(5):
        metrics.enqueued({("mail", "send"): 1})

    assert asked == [("mail", "send")]


def test_threads_lose_no_count() -> None:
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for i in range(500):
            metrics.finished({("mail", f"t{i % 50}", "succeeded"): 2}, 0.001)

    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)

    found = [value("finished_total", queue="mail", type=f"t{i}", outcome="succeeded") for i in range(50)]
    assert found == [160.0] * 50
    assert value("finish_seconds_count") == 4000


def test_the_registry_is_not_the_librarys_global_one() -> None:
    metrics.enqueued({("mail", "send"): 1})

    assert metrics.registry() is not prometheus_client.REGISTRY
    assert "tandemq" not in prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
    assert metrics.registry() is metrics.registry()


def test_importing_tandemq_does_not_import_the_library() -> None:
    assert python("import sys, tandemq, tandemq.metrics; print('prometheus_client' in sys.modules)") == "False"


def test_without_the_library_nothing_is_counted_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with caplog.at_level(logging.INFO, "tandemq"):
        test_calls = [
            lambda: metrics.enqueued({("mail", "send"): 1}),
            lambda: metrics.pushed("mail", 1),
            lambda: metrics.promoted("mail", 1),
            lambda: metrics.repushed("mail", 1),
            lambda: metrics.claimed({("mail", "send"): 1}, 0.1),
            lambda: metrics.dropped("mail", 1),
            lambda: metrics.finished({("mail", "send", "dead"): 1}, 0.1),
            lambda: metrics.retried({("send", 1): 1}),
            lambda: metrics.dead({("send", "timeout"): 1}),
            lambda: metrics.fenced(1),
        ]
        assert [call() for call in test_calls] == [None] * 10

    assert metrics.registry() is None
    assert caplog.messages == []


def test_it_is_looked_for_once_not_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    metrics.fenced(1)

    monkeypatch.undo()
    metrics.fenced(1)

    assert metrics.registry() is None


def test_an_error_inside_is_told_once_and_reaches_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.registry()

    def full(self: Histogram, amount: float) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Histogram, "observe", full)
    for _ in range(3):
        metrics.claimed({("mail", "send"): 1}, 0.1)

    assert caplog.messages == ["not all is counted: OSError: [Errno 28] No space left on device"]
    assert value("claimed_total", queue="mail", type="send") == 3


def test_a_folder_for_several_processes_that_does_not_exist_is_told_and_reaches_nobody(tmp_path: Path) -> None:
    program = "from tandemq import metrics; metrics.fenced(1); metrics.fenced(1); print(metrics.registry())"

    said = python(program, PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "none"))

    assert said.splitlines()[-1] == "None"
    assert said.count("nothing is counted, metrics cannot be made: FileNotFoundError") == 1


def test_several_processes_become_one_page_in_the_librarys_multiprocess_mode(tmp_path: Path) -> None:
    program = "from tandemq import metrics; metrics.finished({('mail', 'send', 'succeeded'): 21}, 0.1)"
    for _ in range(2):
        python(program, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))

    labels = {"queue": "mail", "type": "send", "outcome": "succeeded"}
    assert registry.get_sample_value("tandemq_finished_total", labels) == 42
    assert registry.get_sample_value("tandemq_finish_batch_size_sum", {}) == 42
    assert registry.get_sample_value("tandemq_finish_seconds_count", {}) == 2


CHILD = """
import sys
from tandemq import metrics
metrics.number_process(1)
for n in range(300):
    metrics.dropped(f"q{sys.argv[1]}-{n}", 1)
    metrics.ran([(f"q{sys.argv[1]}-{n}", "t", 0.1, 0.1, 1)])
"""


def test_processes_that_follow_each_other_share_the_bound_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(4):
        python(f"import sys; sys.argv = ['', '{k}']{CHILD}", PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    samples = [s for metric in registry.collect() for s in metric.samples]
    dropped = {s.labels["queue"]: s.value for s in samples if s.name == "tandemq_dropped_total"}
    assert sum(dropped.values()) == 1200
    assert len(dropped) == MAX_SERIES + 1
    assert dropped["q0-7"] == 1
    waited = {s.labels["queue"]: s.value for s in samples if s.name == "tandemq_queue_latency_seconds_count"}
    assert sum(waited.values()) == 1200
    assert len(waited) == MAX_TIMED + 1


def test_a_folder_of_its_own_goes_with_its_process_and_one_left_behind_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}of-one-that-was-killed"
    left.mkdir()
    (left / "lock").touch()
    (left / "counter_1.db").touch()
    being_made = tmp_path / f"{PREFIX}of-one-that-starts-now"
    being_made.mkdir()
    with own_folder() as first:
        assert not left.exists()
        with own_folder() as second:
            assert {str(path) for path in tmp_path.iterdir()} == {first, second, str(being_made)}
    assert list(tmp_path.iterdir()) == [being_made]


FORK = """
import os, threading
from tandemq import metrics
metrics.enqueued({("mail", "send"): 5})
held, done = threading.Event(), threading.Event()
def hold():
    with metrics._making, metrics._meters.enqueued._counter.labels("mail", "send")._value._lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
if os.fork() == 0:
    metrics.enqueued({("mail", "send"): 1})
    count = metrics.registry().get_sample_value("tandemq_enqueued_total", {"queue": "mail", "type": "send"})
    os._exit(int(count))
_, status = os.wait()
done.set()
print("child", os.waitstatus_to_exitcode(status))
print("parent", metrics.registry().get_sample_value("tandemq_enqueued_total", {"queue": "mail", "type": "send"}))
"""


def test_a_forked_child_counts_from_zero_whatever_a_thread_of_its_parent_held() -> None:
    program = "import warnings; warnings.simplefilter('ignore')\n" + FORK

    assert python(program).splitlines() == ["child 1", "parent 5.0"]
