"""How long to wait before the next try, as a function of the number of failures: pure, before jitter."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Backoff(Protocol):
    """Seconds to wait after failure number ``attempt`` (counted from 1), before jitter."""

    def __call__(self, attempt: int) -> float:
        """The delay in seconds, 0 or more, for any attempt number."""
        ...


def seconds(value: float, field: str) -> float:
    """A finite number of seconds >= 0. TypeError or ValueError, for who writes a policy."""
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
            object.__setattr__(self, name, seconds(getattr(self, name), name))

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
            seconds(getattr(self, name), name)

    def __call__(self, attempt: int) -> float:
        """Delay after failure ``attempt``."""
        return min(self.cap, self.base + self.step * (max(1, attempt) - 1))


@dataclass(frozen=True, slots=True)
class Constant:
    """The same delay every time."""

    delay: float = 5.0

    def __post_init__(self) -> None:
        seconds(self.delay, "delay")

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
            seconds(delay, "backoff")

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
        return Constant(seconds(value, "backoff"))
    if isinstance(value, list | tuple):
        return Delays(tuple(float(seconds(d, "backoff")) for d in value))
    if callable(value):
        return value
    raise TypeError(f"backoff must be a backoff, a list of seconds or a callable, not {type(value).__name__}")
