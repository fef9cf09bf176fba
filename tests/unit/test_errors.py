"""The tree of errors is a contract: its docstring draws it, the classes keep to it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tandemq.core import errors
from tandemq.core.errors import NonRetryable, Retry, Retryable, Snooze, TandemQError, TaskTimeout, ValidationFailed

TREE: dict[str, tuple[str, ...]] = {
    "TandemQError": ("Exception",),
    "ConfigurationError": ("TandemQError", "ValueError"),
    "InvalidTask": ("TandemQError", "ValueError"),
    "InvalidType": ("InvalidTask", "TypeError"),
    "PayloadTooLarge": ("InvalidTask",),
    "IdempotencyConflict": ("TandemQError",),
    "EnqueueUnknown": ("TandemQError",),
    "TaskNotFound": ("TandemQError", "LookupError"),
    "TaskDead": ("TandemQError",),
    "TaskCancelled": ("TandemQError",),
    "NotMigrated": ("TandemQError",),
    "LeaseLost": ("TandemQError",),
    "StoreRefused": ("TandemQError",),
    "ForeignInstall": ("TandemQError",),
    "Unavailable": ("TandemQError",),
    "StoreUnavailable": ("Unavailable",),
    "StoreUnknown": ("StoreUnavailable",),
    "StoreBusy": ("StoreUnavailable",),
    "BrokerUnavailable": ("Unavailable",),
    # Raised by or into handlers; user code must be able to tell them from tandemq's own errors.
    "Retry": ("Exception",),
    "Snooze": ("Exception",),
    "Retryable": ("Exception",),
    "NonRetryable": ("Exception",),
    "ValidationFailed": ("NonRetryable",),
    "TaskTimeout": ("Exception",),
}


def _classes() -> dict[str, type[BaseException]]:
    return {n: c for n, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__}


def test_the_tree_is_as_written_down() -> None:
    assert {name: tuple(base.__name__ for base in cls.__bases__) for name, cls in _classes().items()} == TREE


def test_the_module_draws_every_error_and_each_has_a_docstring() -> None:
    for name, cls in _classes().items():
        assert cls.__doc__, name
        if issubclass(cls, TandemQError) or name in {"Retry", "Snooze", "Retryable", "NonRetryable", "TaskTimeout"}:
            assert name in (errors.__doc__ or "")


def test_what_steers_a_retry_is_no_error_of_tandemq() -> None:
    for cls in (Retry, Snooze, Retryable, NonRetryable, ValidationFailed, TaskTimeout):
        assert not issubclass(cls, TandemQError)


@pytest.mark.parametrize("delay", [0, 1.5, float("inf")])
def test_a_handler_may_ask_for_any_delay(delay: float) -> None:
    assert Retry(delay).delay == delay
    assert Snooze(delay).delay == delay
    assert Retry().delay is None
    assert str(Retry(1, "rate limited")) == "rate limited"


@pytest.mark.parametrize(
    ("delay", "error"),
    [("soon", ValueError), (b"5", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)],
)
def test_a_nonsense_delay_is_refused_where_it_is_written(delay: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="delay"):
        Retry(delay)
    with pytest.raises(error, match="delay"):
        Snooze(delay)
