"""What a replay run is told to do, checked before anything is stored, and as the JSON that its row keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from tandemq.core import values
from tandemq.core.body import parse_json
from tandemq.core.codec import decode, encode, encode_object
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.values import Priority, Seconds

#: The bound of the fuse where only a canary is asked for.
DEFAULT_BOUND = 0.2
CANARY_WAIT_S = 600.0
MAX_RATE = 1_000_000.0
_RATE = re.compile(r"\s*([0-9.]+)\s*/\s*(s|m|min|h)\s*")
_PER_S = {"s": 1, "m": 60, "min": 60, "h": 3600}


class ReplayOptions(TypedDict, total=False):
    """How ``replay`` goes about it.

    ``rate``: "50/s", "10/min", or a number a second. ``limit``: the newest so many. ``edit``: a JSON merge patch (RFC
    7396) on each payload. ``queue``, ``priority``: another level. ``canary``: "1%" or a count, replayed first;
    ``stop_if_failing``: "20%" or a share like 0.2: the run pauses where more of the replayed tasks die again;
    ``canary_wait``: seconds that the canary's ends are waited for. ``dry_run``: only count. ``reason``, ``who``: for
    the audit log. ``detach``: do not wait; the reconciler carries the run out.
    """

    rate: str | float | None
    limit: int | None
    edit: Mapping[str, Any] | str | None
    queue: str | None
    priority: Priority | None
    canary: str | int | None
    stop_if_failing: str | float | None
    canary_wait: Seconds | None
    dry_run: bool
    reason: str
    who: str | None
    detach: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Checked. ``rate`` in tasks a second; ``canary`` a count (int) or a share (float); ``bound`` a share."""

    rate: float | None = None
    limit: int | None = None
    edit: Mapping[str, Any] | None = None
    queue: str | None = None
    priority: int | None = None
    canary: float | None = None
    bound: float | None = None
    canary_wait_s: float = CANARY_WAIT_S

    @classmethod
    def of(cls, options: ReplayOptions) -> Orders:
        """InvalidTask names what cannot be done."""
        queue, level = options.get("queue"), options.get("priority")
        canary, bound = options.get("canary"), options.get("stop_if_failing")
        wait, edit = options.get("canary_wait"), options.get("edit")
        share = None if bound is None else parse_share(bound, "stop_if_failing")
        return cls(
            rate=None if options.get("rate") is None else parse_rate(options["rate"]),
            limit=_limit(options.get("limit")),
            edit=None if edit is None else parse_edit(edit),
            queue=None if queue is None else values.queue_name(queue),
            priority=None if level is None else values.priority(level),
            canary=None if canary is None else parse_canary(canary),
            bound=DEFAULT_BOUND if share is None and canary is not None else share,
            canary_wait_s=CANARY_WAIT_S if wait is None else values.seconds(wait, "canary_wait"),
        )

    @property
    def is_plain(self) -> bool:
        """Nothing in it needs a run: no pace, no limit, no fuse."""
        return self.rate is None and self.limit is None and self.bound is None

    def sample_size(self, n: int) -> int:
        """How many of ``n`` tasks are the canary: at least one."""
        if self.canary is None or not n:
            return 0
        wanted = self.canary if isinstance(self.canary, int) else math.ceil(self.canary * n - 1e-9)
        return max(1, min(n, int(wanted)))

    def to_json(self) -> dict[str, Any]:
        """What differs from the default."""
        plain = Orders()
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) != getattr(plain, name)}

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """As stored; what a newer release has added is left out."""
        given = decode(text)
        return cls(**{name: given[name] for name in cls.__slots__ if name in given})


def parse_rate(value: Any) -> float:
    """ "50/s", "10/min", "600/h" or a number a second, as a number a second."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    number = _number(found.group(1) if found else value)
    per_s = None if number is None else number / (_PER_S[found.group(2)] if found else 1)
    if per_s is None or not 0 < per_s <= MAX_RATE:
        raise InvalidTask(f"rate {value!r} is no rate like 50/s or 10/min", field="rate")
    return per_s


def parse_share(value: Any, field: str) -> float:
    """ "20%" or 0.2, as 0.2."""
    text = value.strip() if isinstance(value, str) else None
    number = _number(text.removesuffix("%") if text is not None else value)
    share = None if number is None else number / 100 if text is not None and text.endswith("%") else number
    if share is None or not 0 <= share <= 1:
        raise InvalidTask(f"{field} {value!r} is no share like 20% or 0.2", field=field)
    return share


def parse_canary(value: Any) -> float:
    """ "1%" as 0.01 (a float), "50" or 50 as 50 (an int)."""
    if (isinstance(value, str) and value.strip().endswith("%")) or isinstance(value, float):
        share = parse_share(value, "canary")
    else:
        count = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if type(count) is not int or not 1 <= count < 2**31:
            raise InvalidTask(f"canary {value!r} is no share like 1% and no count of at least 1", field="canary")
        return count
    if not share:
        raise InvalidTask(f"canary {value!r} is nothing", field="canary")
    return float(share)


def parse_edit(value: Any) -> Mapping[str, Any]:
    """A merge patch that leaves a payload an object: it must be one itself."""
    patch = parse_json(value, "edit") if isinstance(value, str) else value
    if not isinstance(patch, Mapping):
        raise InvalidType(f"edit must be a JSON object, not {type(patch).__name__}", field="edit")
    return decode(encode_object(dict(patch), "edit"))  # type: ignore[no-any-return]  # an object, as just checked


def merged(payload: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged member by member, null removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    out = dict(payload) if isinstance(payload, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merged(out.get(name), value)
    return out


def canonical(value: Any) -> str:
    """Equal values have equal text."""
    return encode(_sorted(value), "replay")


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list | tuple) else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _limit(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidTask(f"limit must be a whole number of at least 1, not {value!r}", field="limit")
    return value
