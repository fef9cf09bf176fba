"""When to try again, and after how long: pure, no clock, randomness passed in.

The default delays are 5, 10, 20, 40 ... at most 300 seconds after the 1st, 2nd, 3rd ... failure, each
moved by up to ±20 % so that tasks that failed together do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from random import Random
from typing import Any, Literal

from tandemq.core.backoff import (
    Backoff,
    Constant,
    Delays,
    Exponential,
    Linear,
    as_backoff,
    backoff_from_spec,
    backoff_spec,
    seconds,
)
from tandemq.core.codec import decode
from tandemq.core.errors import NonRetryable, Retry, Retryable
from tandemq.core.ids import new_random

__all__ = [
    "DEFAULT_MAX_RETRIES",
    "JITTER",
    "MAX_DELAY_S",
    "MAX_RETRIES",
    "Backoff",
    "Constant",
    "Decision",
    "Delays",
    "Exponential",
    "Linear",
    "QueuePolicy",
    "RetryPolicy",
    "as_backoff",
    "backoff_from_spec",
    "backoff_spec",
    "check_max_retries",
    "on_the_task_only",
    "policy_of",
    "policy_options",
]

DEFAULT_MAX_RETRIES = 3
MAX_RETRIES = 1_000_000
MAX_DELAY_S = 10 * 366 * 86_400.0
JITTER = 0.2
Decision = Literal["retry", "give_up"]
Jitter = float | Literal["full"]
_random = new_random()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a task is retried.

    ``max_retries``: runs allowed are 1 + max_retries; None leaves it to the queue, then 3. ``jitter`` is the share
    (0..1) by which a delay is moved up or down, but not beyond the backoff's cap; or "full": anything from 0 to the
    delay (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). With a ``seed`` (a number or
    a text) the same attempt has the same delay in every process. ``max_age`` (seconds or timedelta): no retry begins
    later than this after the task was created, or replayed.

    An exception is retried unless ``give_up_on`` names it; with ``retry_on`` only those named (and ``Retryable``);
    ``when(exc, attempt)`` decides alone where it is given. ``NonRetryable`` is never retried, ``Retry`` always while
    attempts are left.
    """

    max_retries: int | None = None
    backoff: Backoff | Sequence[float] | float = Exponential()  # noqa: RUF009 - frozen
    jitter: Jitter = JITTER
    max_age: float | timedelta | None = None
    seed: int | str | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    when: Callable[[BaseException, int], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_retries is not None:
            check_max_retries(self.max_retries)
        object.__setattr__(self, "backoff", as_backoff(self.backoff))
        if self.jitter != "full" and not 0 <= seconds(self.jitter, "jitter") <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, or 'full', not {self.jitter!r}")
        if self.max_age is not None:
            age = self.max_age.total_seconds() if isinstance(self.max_age, timedelta) else self.max_age
            object.__setattr__(self, "max_age", seconds(age, "max_age"))
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int | str)):
            raise TypeError(f"seed must be an integer or a text, not {self.seed!r}")
        for name in ("retry_on", "give_up_on"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, type) else tuple(value)
            if not all(isinstance(e, type) and issubclass(e, BaseException) for e in value):
                raise TypeError(f"{name} must hold exception classes")
            object.__setattr__(self, name, value)

    @property
    def max_age_s(self) -> float | None:
        """``max_age`` in seconds."""
        return self.max_age  # type: ignore[return-value]  # __post_init__ made it one

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        """Seconds to wait after failure ``attempt`` (from 1), jitter included; 0 <= delay <= 10 years.

        ``rng`` is used unless the policy has a ``seed``. Never raises but for what a callable backoff raises.
        """
        backoff: Backoff = self.backoff  # type: ignore[assignment]  # __post_init__ made it one
        cap = min(backoff.cap, MAX_DELAY_S) if isinstance(backoff, Exponential | Linear) else MAX_DELAY_S
        base = min(float(backoff(attempt)), MAX_DELAY_S)
        if not base > 0:
            return 0.0
        if self.seed is not None:
            rng = Random(f"{self.seed}/{attempt}")  # noqa: S311 - of a text: the same in every process
        rng = rng or _random
        if self.jitter == "full":
            return rng.uniform(0.0, base)
        # Drawn between the two ends, not cut off at the upper one: half of those at the cap would come back together.
        return rng.uniform(base * (1 - self.jitter), min(base * (1 + self.jitter), cap))

    def decision(self, exc: BaseException, attempt: int) -> Decision:
        """Whether this exception may be retried at all; the count of attempts is checked elsewhere."""
        if isinstance(exc, NonRetryable):
            return "give_up"
        if isinstance(exc, Retry | Retryable):
            return "retry"
        if isinstance(exc, self.give_up_on):
            return "give_up"
        if self.when is not None:
            return "retry" if self.when(exc, attempt) else "give_up"
        return "retry" if not self.retry_on or isinstance(exc, self.retry_on) else "give_up"


_DEFAULTS = {f.name: f.default for f in fields(RetryPolicy)}
#: What travels with a row; callables and exception classes live on the task alone.
_TRAVELLING = ("jitter", "max_age", "seed")


def policy_options(policy: RetryPolicy, *, whole: bool = False) -> dict[str, Any]:
    """What of a policy a row carries in its options: what is not the default, or ``whole``.

    A lost lease is judged by the supervisor or the reconciler, which have no handlers. A callable backoff is left out.
    """
    options = {}
    spec = backoff_spec(policy.backoff)  # type: ignore[arg-type]  # __post_init__ made it a backoff
    if spec is not None and (whole or policy.backoff != _DEFAULTS["backoff"]):
        options["backoff"] = spec
    for name in _TRAVELLING:
        value = getattr(policy, name)
        if whole or value != _DEFAULTS[name]:
            options[name] = value
    return options


def on_the_task_only(policy: RetryPolicy) -> list[str]:
    """What of a policy is code, which does not travel with a row."""
    names = [name for name in ("when", "retry_on", "give_up_on") if getattr(policy, name)]
    return names if backoff_spec(as_backoff(policy.backoff)) is not None else [*names, "backoff (a callable)"]


def policy_of(options: str, policy: RetryPolicy | None = None) -> RetryPolicy:
    """The policy of one row: ``policy`` (else the default) with what the row's options carry (``policy_options``).

    ``options`` is JSON text as stored, "" for none. Whatever is in there, it never raises: a row that cannot be judged
    would stay under a lost lease for ever.
    """
    base = policy or RetryPolicy()
    try:
        given = decode(options) if options else {}
        changes = {name: given[name] for name in _TRAVELLING if name in given}
        if given.get("backoff"):
            changes["backoff"] = backoff_from_spec(given["backoff"])
        return replace(base, **changes) if changes else base
    except (ValueError, TypeError, AttributeError, RecursionError):
        return base


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What operators decided about the retries of a queue's tasks; None and {} leave it to the default.

    ``options`` are as of ``policy_options``. It holds where neither the enqueue nor the task says otherwise.
    """

    max_retries: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, max_retries: int | None, text: str | None) -> QueuePolicy:
        """As stored. What cannot be read counts as not decided: an enqueue must not fail of it."""
        try:
            given = decode(text) if text else {}
            known = {name: given[name] for name in ("backoff", *_TRAVELLING) if name in given}
        except (ValueError, TypeError, RecursionError):
            known = {}
        return cls(max_retries, known)


def check_max_retries(value: object) -> int:
    """0..1,000,000 as an int; everything else is refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_retries must be an integer >= 0, not {value!r}")
    if not 0 <= value <= MAX_RETRIES:
        raise ValueError(f"max_retries must be between 0 and {MAX_RETRIES}, not {value}")
    return value
