"""The public surface is a list that changes on purpose only."""

from __future__ import annotations

import subprocess
import sys

import tandemq
import tandemq.core.errors
import tandemq.testing

PUBLIC = [
    "IN_TRANSACTION",
    "AsyncTask",
    "BrokerUnavailable",
    "ConfigurationError",
    "Constant",
    "CurrentTask",
    "EnqueueUnknown",
    "Exponential",
    "Failure",
    "Filter",
    "ForeignInstall",
    "Handle",
    "IdempotencyConflict",
    "InvalidTask",
    "InvalidType",
    "LeaseLost",
    "Linear",
    "NewTask",
    "NonRetryable",
    "NotMigrated",
    "PayloadTooLarge",
    "Retry",
    "RetryPolicy",
    "Retryable",
    "Settings",
    "Snooze",
    "Status",
    "StoreBusy",
    "StoreRefused",
    "StoreUnavailable",
    "StoreUnknown",
    "StoredTask",
    "TandemQ",
    "TandemQError",
    "Task",
    "TaskCancelled",
    "TaskDead",
    "TaskHandler",
    "TaskNotFound",
    "TaskTimeout",
    "Unavailable",
    "ValidationFailed",
    "__version__",
    "current_task",
]
APP = [
    "acancel",
    "add_listener",
    "aenqueue",
    "aenqueue_many",
    "aget",
    "apush",
    "audit",
    "admin",
    "broker",
    "cancel",
    "clock",
    "close",
    "dead",
    "doctor",
    "encoder",
    "enqueue",
    "enqueue_many",
    "get",
    "handler",
    "health",
    "import_tasks",
    "offload",
    "pauses",
    "producer",
    "prune",
    "push",
    "queues",
    "registry",
    "settings",
    "stats",
    "store",
    "task",
    "tokens",
    "why",
    "workers",
]


def test_the_public_names_are_these() -> None:
    assert tandemq.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(tandemq, name) is not None
    assert tandemq.testing.__all__ == ["FakeClock", "run_until_idle", "tandemq_app", "tandemq_clock"]


def test_every_error_is_public() -> None:
    errors = {n for n, value in vars(tandemq.core.errors).items() if isinstance(value, type)}

    assert errors <= set(PUBLIC)


def test_an_app_offers_these() -> None:
    assert sorted(n for n in dir(tandemq.TandemQ()) if not n.startswith("_")) == sorted(APP)


def test_the_version_is_text() -> None:
    assert isinstance(tandemq.__version__, str)
    assert tandemq.__version__


def test_importing_tandemq_reads_no_environment_and_makes_no_noise() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import tandemq"],
        env={"PYTHONPATH": ":".join(sys.path), "TANDEMQ_LEASE_S": "nonsense"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout + done.stderr == ""
