"""When to try again, and after how long: pure, no clock, randomness passed in.

The default delays are 5, 10, 20, 40 ... at most 300 seconds after the 1st, 2nd, 3rd ... failure, each
moved by up to ±20 % so that tasks that failed together do not come back together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, Protocol

from tandemq.core.codec import decode
from tandemq.core.errors import NonRetryable, Retry, Retryable

DEFAULT_MAX_RETRIES = 3
MAX_RETRIES = 1_000_000
MAX_DELAY_S = 10 * 366 * 86_400.0
JITTER = 0.2

Decision = Literal["retry", "give_up"]


class Backoff(Protocol):
    """Seconds to wait after failure number ``attempt`` (counted from 1), before jitter."""

    def __call__(self, attempt: int) -> float:
        """The delay in seconds, 0 or more, for any attempt number."""
        ...


def _seconds(value: float, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number of seconds, not {type(value).__name__}")
    # Compared with a float on purpose: an int of 400 digits does not fit into math.isfinite.
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{field} must be a finite number of seconds >= 0, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Exponential:
    """``base * factor ** (attempt - 1)``, at most ``cap`` seconds; never overflows."""

    base: float = 5.0
    factor: float = 2.0
    cap: float = 300.0

    def __post_init__(self) -> None:
        # As floats: ``2 ** 999_999`` in integers takes a while, ``2.0 ** 999_999`` overflows at once.
        for name in ("base", "factor", "cap"):
            object.__setattr__(self, name, _seconds(getattr(self, name), name))

    def __call__(self, attempt: int) -> float:
        """Delay after failure ``attempt``. ``2.0 ** 5000`` is an OverflowError: that is the cap."""
        try:
            return min(self.cap, self.base * self.factor ** (max(1, attempt) - 1))
        except OverflowError:
            return self.cap if self.base else 0.0


@dataclass(frozen=True, slots=True)
class Linear:
    """``base + step * (attempt - 1)``, at most ``cap`` seconds."""

    base: float = 5.0
    step: float = 5.0
    cap: float = 300.0

    def __post_init__(self) -> None:
        for name in ("base", "step", "cap"):
            _seconds(getattr(self, name), name)

    def __call__(self, attempt: int) -> float:
        """Delay after failure ``attempt``."""
        return min(self.cap, self.base + self.step * (max(1, attempt) - 1))


@dataclass(frozen=True, slots=True)
class Constant:
    """The same delay every time."""

    delay: float = 5.0

    def __post_init__(self) -> None:
        _seconds(self.delay, "delay")

    def __call__(self, attempt: int) -> float:
        """Delay after failure ``attempt``."""
        return self.delay


@dataclass(frozen=True, slots=True)
class Delays:
    """A list of delays whose last one repeats."""

    delays: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.delays:
            raise ValueError("backoff must not be an empty list of delays")
        for delay in self.delays:
            _seconds(delay, "backoff")

    def __call__(self, attempt: int) -> float:
        """Delay after failure ``attempt``."""
        return self.delays[min(max(1, attempt), len(self.delays)) - 1]


_KINDS: dict[str, type[Exponential | Linear | Constant]] = {
    "exponential": Exponential,
    "linear": Linear,
    "constant": Constant,
}


def backoff_spec(backoff: Backoff) -> dict[str, Any] | None:
    """The backoff as a JSON object for a row's options; None for a callable, which lives only on the task."""
    if isinstance(backoff, Delays):
        return {"kind": "delays", "delays": list(backoff.delays)}
    for kind, cls in _KINDS.items():
        if type(backoff) is cls:
            return {"kind": kind} | {name: getattr(backoff, name) for name in cls.__slots__}
    return None


def backoff_from_spec(spec: Mapping[str, Any]) -> Backoff:
    """The inverse of ``backoff_spec``; an unknown or broken spec gives the default, it never raises."""
    try:
        fields = {k: v for k, v in spec.items() if k != "kind"}
        if spec.get("kind") == "delays":
            return Delays(tuple(fields["delays"]))
        return _KINDS[spec["kind"]](**fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Exponential()


def as_backoff(value: Backoff | Sequence[float] | float) -> Backoff:
    """Accept a backoff object, a callable, a list of delays or one number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(_seconds(value, "backoff"))
    if isinstance(value, list | tuple):
        return Delays(tuple(float(_seconds(d, "backoff")) for d in value))
    if callable(value):
        return value
    raise TypeError(f"backoff must be a backoff, a list of seconds or a callable, not {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a task is retried.

    ``max_retries``: runs allowed are 1 + max_retries; None leaves it to the queue, then 3. ``jitter`` is the share
    (0..1) by which a delay is moved up or down, but not over the backoff's cap. An exception is retried unless
    ``give_up_on`` names it; with ``retry_on`` only those named (and ``Retryable``); ``when(exc, attempt)`` decides
    alone where it is given. ``NonRetryable`` is never retried, ``Retry`` always while attempts are left.
    """

    max_retries: int | None = None
    backoff: Backoff | Sequence[float] | float = Exponential()
    jitter: float = JITTER
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    when: Callable[[BaseException, int], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_retries is not None:
            check_max_retries(self.max_retries)
        object.__setattr__(self, "backoff", as_backoff(self.backoff))
        if not 0 <= _seconds(self.jitter, "jitter") <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, not {self.jitter!r}")
        for name in ("retry_on", "give_up_on"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, type) else tuple(value)
            if not all(isinstance(e, type) and issubclass(e, BaseException) for e in value):
                raise TypeError(f"{name} must hold exception classes")
            object.__setattr__(self, name, value)

    def delay(self, attempt: int, rng: Random) -> float:
        """Seconds to wait after failure ``attempt`` (from 1), jitter included; 0 <= delay <= the cap, or 10 years."""
        backoff: Backoff = self.backoff  # type: ignore[assignment]  # __post_init__ made it one
        cap = min(backoff.cap, MAX_DELAY_S) if isinstance(backoff, Exponential | Linear) else MAX_DELAY_S
        base = min(float(backoff(attempt)), MAX_DELAY_S)
        if not base > 0:
            return 0.0
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


def policy_of(options: str, policy: RetryPolicy | None = None) -> RetryPolicy:
    """The policy of one row: ``policy`` (else the default) with the backoff and jitter that the row's options carry.

    ``options`` is JSON text as stored, "" for none. Whatever is in there, it never raises: a row that cannot be judged
    would stay under a lost lease for ever.
    """
    base = policy or RetryPolicy()
    try:
        given = decode(options) if options else {}
        if "jitter" in given:
            base = replace(base, jitter=given["jitter"])
        return replace(base, backoff=backoff_from_spec(given["backoff"])) if given.get("backoff") else base
    except (ValueError, TypeError, AttributeError, RecursionError):
        return base


def check_max_retries(value: object) -> int:
    """0..1,000,000 as an int; everything else is refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_retries must be an integer >= 0, not {value!r}")
    if not 0 <= value <= MAX_RETRIES:
        raise ValueError(f"max_retries must be between 0 and {MAX_RETRIES}, not {value}")
    return value
