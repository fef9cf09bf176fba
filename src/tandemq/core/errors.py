"""Every error tandemq raises, one tree.

    TandemQError
    ├── ConfigurationError (ValueError)      settings that cannot work together
    ├── InvalidTask (ValueError)             what was asked for is not a task
    │   ├── InvalidType (TypeError)          … because a value has the wrong type
    │   └── PayloadTooLarge                  … because it is over the limit
    ├── IdempotencyConflict                  the key belongs to another task
    ├── EnqueueUnknown                       the COMMIT's answer was lost: stored or not, nobody knows
    ├── TaskNotFound (LookupError)
    ├── TaskDead, TaskCancelled              raised by ``handle.result()``
    ├── NotMigrated                          the schema is missing or older than this code
    ├── LeaseLost                            the task that ran here is another worker's by now
    ├── StoreRefused                         the database refused a statement: sent again, it would say the same
    ├── ForeignInstall                       this Redis namespace belongs to another database
    └── Unavailable                          a server cannot be reached
        ├── StoreUnavailable
        │   ├── StoreUnknown                 … and broke during COMMIT
        │   └── StoreBusy                    … no: it answers, but somebody holds the rows
        └── BrokerUnavailable

Raised *by handlers* to steer a retry: ``Retry``, ``Retryable``, ``NonRetryable``, ``Snooze``;
raised *into* a handler at its time limit: ``TaskTimeout``.
"""

from __future__ import annotations

from tandemq.core.retryafter import Wait, wait


class TandemQError(Exception):
    """Root of every error of tandemq."""


class ConfigurationError(TandemQError, ValueError):
    """Settings that cannot work; the message lists every fault, each naming its values."""


class InvalidTask(TandemQError, ValueError):
    """The task asked for cannot be stored. Nothing was stored. ``field`` names the culprit."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InvalidType(InvalidTask, TypeError):
    """A value has a type that the field cannot take. Nothing was stored."""


class PayloadTooLarge(InvalidTask):
    """The payload is over the limit (or over the server's packet size). Nothing was stored."""


class IdempotencyConflict(TandemQError):
    """The idempotency key belongs to a task of another type or payload. Nothing was stored.

    ``task_id`` is the task that owns the key.
    """

    def __init__(self, message: str, *, task_id: int) -> None:
        super().__init__(message)
        self.task_id = task_id


class EnqueueUnknown(TandemQError):
    """The connection broke during COMMIT: the task may or may not be stored.

    Not retried by tandemq: without an idempotency key a second INSERT could make a second task.
    """


class TaskNotFound(TandemQError, LookupError):
    """No task has this id."""


class TaskDead(TandemQError):
    """``result()`` of a task that ended dead; carries ``task_id``, ``reason`` and ``error``."""

    def __init__(self, message: str, *, task_id: int, reason: str, error: str) -> None:
        super().__init__(message)
        self.task_id, self.reason, self.error = task_id, reason, error


class TaskCancelled(TandemQError):
    """``result()`` of a task that was cancelled."""


class NotMigrated(TandemQError):
    """The database lacks tandemq's tables or a migration; the message names the command."""


class ForeignInstall(TandemQError):
    """The Redis namespace is marked by another database's install id; nothing was touched."""


class Unavailable(TandemQError):
    """A server cannot be reached or refuses work for now."""


class StoreUnavailable(Unavailable):
    """MySQL (or SQLite) cannot be reached, is read-only or is failing over. Nothing was written."""

    #: Whether the transaction may have been committed all the same.
    unknown = False
    #: Whether it answered, and refused this user, database or grant: waiting does not help.
    denied = False


class StoreUnknown(StoreUnavailable):
    """The connection broke during COMMIT: written or not, nobody knows. Never to be read as "failed"."""

    unknown = True


class StoreBusy(StoreUnavailable):
    """Rows stayed locked by another transaction. The server is well, and other rows are free. Nothing was written."""


class LeaseLost(TandemQError):
    """A handler's transaction found its task under another lease (or ended): all of it was rolled back."""


class StoreRefused(TandemQError):
    """The database refused a statement for good (a broken value, a wrong schema, a bug). Nothing was written."""


class BrokerUnavailable(Unavailable):
    """Redis cannot be reached, is loading, read-only or out of memory."""


class Retry(Exception):
    """Raise in a handler: try again after ``delay`` (None: the policy decides). Uses an attempt.

    ``delay`` is seconds, a timedelta, an aware datetime, or what a server sent as ``Retry-After``. What is none of
    these is refused where it is written, in the handler: later nobody could say whose it was.
    """

    def __init__(self, delay: Wait | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry asked for by the handler")
        self.delay = None if delay is None else wait(delay)


class Snooze(Exception):
    """Raise in a handler: come back after ``delay`` (as of ``Retry``) without using an attempt."""

    def __init__(self, delay: Wait, reason: str = "") -> None:
        super().__init__(reason or "snoozed by the handler")
        self.delay = wait(delay)


class Retryable(Exception):
    """Raise in a handler: retried although ``retry_on`` does not name it."""


class NonRetryable(Exception):
    """Raise in a handler: never retried, dead at once (reason ``non_retryable``)."""


class ValidationFailed(NonRetryable):
    """The payload was refused by the handler's ``validate``: final, reason ``validation``."""


class TaskTimeout(Exception):
    """Raised in a running handler when its time limit has passed."""
