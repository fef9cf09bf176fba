"""The annotations of a handler as a check of its payload: strict, by msgspec, and giving what they name.

JSON carries less than Python has: a ``datetime`` is a text there, a dataclass an object. ``Types.lower`` makes that
text of it when a task is enqueued, ``Types.lift`` makes the datetime again where the handler runs. An annotation that
msgspec does not know, or that cannot be resolved, checks nothing. See ``docs/handlers.md`` and ADR 14.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from tandemq.core import codec

_log = logging.getLogger("tandemq.typed")
#: The name that stands for all of the payload, where a handler class takes it as one parameter.
WHOLE = ""
#: Of these msgspec gives back what it is given, so that it need only be asked.
_UNCHANGED = frozenset({"IntType", "StrType", "BoolType", "NoneType", "LiteralType", "ListType", "DictType",
                        "UnionType", "AnyType"})  # fmt: skip
_NOT_CHECKED = (inspect.Parameter.empty, Any, "Any", object)


class Misfit(ValueError):
    """A payload does not fit; ``field`` is the path of what does not (``payload.items[3].price``)."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Types:
    """What the annotations of one handler say about its payload. Safe to share between threads.

    They are resolved when they are first asked for: a handler may name a class that its module defines further down,
    and a program that only enqueues by name never imports msgspec.
    """

    def __init__(
        self, fn: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], task: str, extra: str | None = None
    ) -> None:
        """``parameters`` by name in the payload; ``extra`` is the one of ``**kwargs`` among them."""
        self._fn, self._parameters, self._task, self._extra_name = fn, parameters, task, extra
        self._is_whole = WHOLE in parameters
        self._is_made = self._converts = False
        #: Each takes a payload and raises for one that does not fit; None where there is nothing to ask.
        self._fit: Callable[[Any], Any] | None = None
        self._fit_extra: Callable[[Any], Any] | None = None
        self._fields: dict[str, str] = {}
        self._exact: frozenset[str] = frozenset()

    def lift(self, payload: dict[str, Any]) -> Any:
        """The payload with the values that the annotations name; raises Misfit. Whether all are there is not asked."""
        if not self._is_made:
            self._make()
        if self._fit is None:
            return payload
        try:
            fits = self._fit(payload)
            if not self._converts:
                return payload
            if self._is_whole:
                return fits
            fields = self._fields
            lifted = {n: getattr(fits, fields[n]) if n in fields else value for n, value in payload.items()}
            if self._fit_extra is not None:
                lifted |= self._fit_extra({n: v for n, v in payload.items() if n not in self._parameters})
        except self._Invalid as bad:
            raise _misfit(str(bad)) from None
        except RecursionError:
            raise Misfit("nested too deeply to be checked", "payload") from None
        return lifted

    def lower(self, payload: dict[str, Any], encoder: codec.Encoder | None) -> dict[str, Any]:
        """The payload as JSON will carry it, in so far as annotations name every part of a value; never raises.

        What is left is for the codec: its path is named there, or ``encoder`` is asked.
        """
        if codec.is_plain(payload):
            return payload
        if not self._is_made:
            self._make()

        def foreign(value: Any) -> Any:
            if hasattr(value, "model_dump"):
                return value.model_dump(mode="json")
            encoded = value if encoder is None else encoder(value)
            if type(encoded) is type(value):
                raise TypeError("nobody encodes it")  # it would come here for ever
            return encoded

        def lowered(name: str, value: Any) -> Any:
            if type(name) is not str or self._of(name) not in self._exact or codec.is_plain(value):
                return value
            try:
                built = _lists(self._to_builtins(value, str_keys=True, enc_hook=foreign))
                if encoder is not None and self._fit is not None and not self._is_whole:
                    self._fit({name: built})  # else the application's encoder may make what the annotation asks for
            except Exception:
                return value
            return built

        return {name: lowered(name, value) for name, value in payload.items()}

    def _of(self, name: str) -> str | None:
        """The parameter that this part of a payload goes to."""
        return WHOLE if self._is_whole else name if name in self._parameters else self._extra_name

    def _make(self) -> None:
        import msgspec

        self._to_builtins, self._Invalid = msgspec.to_builtins, msgspec.ValidationError
        kinds, exact, converts, options = dict[str, Any](), set[str](), False, dict[str, Any]()
        for name, parameter in self._parameters.items():
            try:
                kind = _kind(self._fn, parameter)
                parts = list(_parts(msgspec.inspect.type_info(kind)))
            except Exception as unknown:
                text = "task %s: %s is not checked: %s: %s"
                _log.debug(text, self._task, name or "the payload", type(unknown).__name__, unknown)
                continue
            named = {type(part).__name__ for part in parts}
            if named == {"AnyType"}:
                continue
            kinds[name] = kind
            if "AnyType" not in named:
                exact.add(name)
            if "CustomType" in named:
                options["dec_hook"] = _from_json
            if any(type(part.key_type).__name__ not in {"StrType", "AnyType"} for part in parts if _is_dict(part)):
                options["str_keys"] = converts = True
            converts |= not named <= _UNCHANGED
        extra = kinds.pop(self._extra_name, None) if self._extra_name is not None else None
        if extra is not None:
            self._fit_extra = functools.partial(msgspec.convert, type=dict[str, extra], **options)  # type: ignore[valid-type]
        if kinds or extra is not None:
            kind = kinds.get(WHOLE) if self._is_whole else self._struct(kinds)
            self._fit = functools.partial(msgspec.convert, type=kind, **options)
        self._exact, self._converts = frozenset(exact), converts or extra is not None
        self._is_made = True

    def _struct(self, kinds: Mapping[str, Any]) -> Any:
        """All parameters as one type: one call, and msgspec's message has the whole path."""
        import msgspec

        # By numbers: a parameter may have a name that a field cannot have.
        self._fields = {name: f"p{i}" for i, name in enumerate(kinds)}
        fields = [(self._fields[name], kind, msgspec.UNSET) for name, kind in kinds.items()]
        return msgspec.defstruct("payload", fields, rename={field: name for name, field in self._fields.items()})


def _kind(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    if any(annotation is one for one in _NOT_CHECKED):
        return Any
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    names = getattr(fn, "__globals__", None) or getattr(type(fn).__call__, "__globals__", {})
    # One at a time: a name that only type checkers import must not hide the others.
    hints = typing.get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), names, include_extras=True)
    # ``x: int = None`` takes None, whatever it says.
    return hints["it"] | None if parameter.default is None else hints["it"]


def _parts(info: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """This type and all that it is made of. TypeError for a class that only its author knows."""
    import msgspec

    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType) and not hasattr(info.cls, "model_validate"):
        raise TypeError(f"{info.cls!r} is none of the types that can be checked")
    if isinstance(info, msgspec.inspect.Type):
        yield info
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _parts(one, seen)


def _is_dict(part: Any) -> bool:
    return type(part).__name__ == "DictType"


def _from_json(kind: type, value: Any) -> Any:
    """Of a pydantic model, or of what looks like one; its errors are ValueErrors, which msgspec gives their path."""
    return kind.model_validate(value)  # type: ignore[attr-defined]  # ``_parts`` has looked


def _lists(value: Any) -> Any:
    """msgspec leaves tuples, which our codec refuses."""
    if isinstance(value, dict):
        return {key: _lists(one) for key, one in value.items()}
    return [_lists(one) for one in value] if isinstance(value, list | tuple) else value


def _misfit(told: str) -> Misfit:
    """msgspec says ``Expected `int`, got `str` - at `$.items[3].price` ``."""
    what, _, place = told.replace("`", "").partition(" - at ")
    field = re.sub(r"\$", "payload", place, count=1) or "payload"
    return Misfit(what[:1].lower() + what[1:], field)
