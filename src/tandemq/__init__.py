"""tandemq: a durable hybrid task queue. MySQL remembers, Redis runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from tandemq.app import TandemQ
from tandemq.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    EnqueueUnknown,
    ForeignInstall,
    IdempotencyConflict,
    InvalidTask,
    InvalidType,
    LeaseLost,
    NonRetryable,
    NotMigrated,
    PayloadTooLarge,
    Retry,
    Retryable,
    Snooze,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    StoreUnknown,
    TandemQError,
    TaskCancelled,
    TaskDead,
    TaskNotFound,
    TaskTimeout,
    Unavailable,
    ValidationFailed,
)
from tandemq.core.lifecycle import Failure, Status
from tandemq.core.retry import Constant, Exponential, Linear, RetryPolicy
from tandemq.core.settings import Settings
from tandemq.core.task import NewTask
from tandemq.core.task import Task as StoredTask
from tandemq.handle import Handle
from tandemq.handler import IN_TRANSACTION, CurrentTask, TaskHandler, current_task
from tandemq.store.answers import Filter
from tandemq.tasks import AsyncTask, Task

try:
    __version__ = _version("tandemq")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
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
