"""JSON in and out: what JSON cannot carry is refused by its path, before anything is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from tandemq.core.errors import InvalidTask, InvalidType

MAX_DEPTH = 100
#: json refuses to read integers with more digits (sys.get_int_max_str_digits), so they are not written.
MAX_INT_BITS = 14_000

Encoder = Callable[[Any], Any]
_SCALARS = frozenset({str, int, float})
#: Compact JSON text of what is plain.
write: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _step(path: str, key: str) -> str:
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


class _Walk:
    """Copies a value while checking it; ``encoder`` may turn a foreign object into something JSON can carry."""

    def __init__(self, encoder: Encoder | None) -> None:
        self.encoder = encoder

    def __call__(self, value: Any, path: str, depth: int = 0) -> Any:
        if value is None or type(value) is bool:
            return value
        return self._scalar(value, path) if type(value) in _SCALARS else self._container(value, path, depth)

    def _scalar(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is str:
            if value.isascii() or is_utf8(value):
                return value
            raise InvalidTask(f"{path} holds a lone surrogate, which UTF-8 cannot carry", field=path)
        if kind is int:
            if value.bit_length() <= MAX_INT_BITS:
                return value
            raise InvalidTask(f"{path} is an integer of more than {MAX_INT_BITS} bits", field=path)
        if math.isfinite(value):
            return value
        raise InvalidTask(f"{path} is {value!r}, which JSON cannot carry", field=path)

    def _container(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if depth >= MAX_DEPTH:
            raise InvalidTask(f"{path} is nested more than {MAX_DEPTH} levels deep", field=path)
        if kind is dict:
            return {self._key(k, path): self(v, _step(path, k), depth + 1) for k, v in value.items()}
        if kind is list:
            return [self(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        return self._foreign(value, path, depth)

    def _key(self, key: Any, path: str) -> str:
        if type(key) is not str:
            raise InvalidType(f"{path} has the key {key!r}; JSON keys must be text", field=path)
        return str(self._scalar(key, path))

    def _foreign(self, value: Any, path: str, depth: int) -> Any:
        if self.encoder is not None:
            encoded = self.encoder(value)
            if type(encoded) is not type(value):
                return self(encoded, path, depth + 1)
        raise InvalidType(
            f"{path} is a {type(value).__name__}, which JSON cannot carry; convert it, or pass an encoder to TandemQ()",
            field=path,
        )


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether ``_Walk`` would find nothing: nearly always so, and without the paths it costs a third."""
    kind = type(value)
    if kind is dict:
        return depth < MAX_DEPTH and all(
            type(k) is str and (k.isascii() or is_utf8(k)) and is_plain(v, depth + 1) for k, v in value.items()
        )
    if kind is list:
        return depth < MAX_DEPTH and all(is_plain(v, depth + 1) for v in value)
    if kind is str:
        return value.isascii() or is_utf8(value)
    if kind is int:
        return bool(value.bit_length() <= MAX_INT_BITS)
    return value is None or kind is bool or (kind is float and math.isfinite(value))


def is_utf8(value: str) -> bool:
    """Whether UTF-8 can carry it: it holds no lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(value: Any, path: str, encoder: Encoder | None = None) -> str:
    """Compact JSON text. Raises InvalidTask/InvalidType naming the path (``payload.items[3].price``)."""
    return write(value if is_plain(value) else _Walk(encoder)(value, path))


def encode_object(value: Any, path: str, encoder: Encoder | None = None) -> str:
    """As ``encode``, for a value that must be a JSON object."""
    return write(plain_object(value, path, encoder))


def plain_object(value: Any, path: str, encoder: Encoder | None = None) -> dict[str, Any]:
    """The first half of ``encode_object``: what JSON carries, for ``write``. Raises what ``encode`` raises."""
    if type(value) is not dict:
        raise InvalidType(f"{path} must be a JSON object (a dict), not {type(value).__name__}", field=path)
    plain: dict[str, Any] = value if is_plain(value) else _Walk(encoder)(value, path)
    return plain


def ascii_only(text: str) -> str:
    """The same JSON with every character outside ASCII escaped: safe on a connection of any charset."""
    return text if text.isascii() else json.dumps(json.loads(text), separators=(",", ":"))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


#: Made once: json.loads with an option makes a decoder per call, which costs more than a small payload.
_decoder = json.JSONDecoder(parse_constant=_no_constant)
_read = _decoder.decode
#: What ``decode`` itself calls; it adds two searches for white space.
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # not in typeshed


def decode(text: str) -> Any:
    """Parse JSON text; NaN and Infinity are refused (Python's parser would accept them)."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return _read(text)  # space in front, or an error that it words
    return value if end == len(text) else _read(text)
