"""What a handler's signature says: which names its payload has, whether it takes the transaction, its annotations."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tandemq.core.errors import ConfigurationError
from tandemq.handler import IN_TRANSACTION
from tandemq.typed import WHOLE, Types

#: The parameter that gets the transaction in which the success is recorded.
TX = "tx"


@dataclass(frozen=True, slots=True)
class Shape:
    """A signature reduced to what binding JSON by name needs; compared with sets, since every run checks it."""

    signature: inspect.Signature
    required: frozenset[str]
    allowed: frozenset[str] | None
    extra: str | None

    @classmethod
    def of(cls, fn: Callable[..., Any], name: str) -> Shape:
        """Of a function; ConfigurationError for parameters that cannot be given by name."""
        signature = signature_of(fn)
        if _has_transaction(signature):
            # The worker gives it: to an enqueue it does not exist.
            signature = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != TX])
        required, allowed, extra = set(), set(), None
        for p in signature.parameters.values():
            if p.kind in {p.POSITIONAL_ONLY, p.VAR_POSITIONAL}:
                star = "*" if p.kind is p.VAR_POSITIONAL else "positional-only "
                raise ConfigurationError(
                    f"task {name!r} has the parameter {star}{p.name}; arguments travel in a JSON object, by name"
                )
            if p.kind is p.VAR_KEYWORD:
                extra = p.name
                continue
            allowed.add(p.name)
            if p.default is p.empty:
                required.add(p.name)
        return cls(signature, frozenset(required), None if extra else frozenset(allowed), extra)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The payload of a call; TypeError if the arguments do not fit."""
        if not args and self.fits(kwargs):
            return kwargs  # all by name: what binding would answer, for a twentieth of its time
        arguments = self.signature.bind(*args, **kwargs).arguments
        if self.extra is not None:
            arguments.update(arguments.pop(self.extra, {}))
        return dict(arguments)

    def fits(self, payload: Mapping[str, Any]) -> bool:
        """Whether the names are right; of the values nothing is asked."""
        keys = payload.keys()
        return self.required <= keys and (self.allowed is None or keys <= self.allowed)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """As ``inspect.signature``, whatever the annotations name."""
    if sys.version_info >= (3, 14):  # annotations are evaluated late there, and may name what only type checkers import
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def types_of(fn: Callable[..., Any], name: str, shape: Shape | None) -> Types | None:
    """None where nothing is annotated, so that it costs nothing."""
    if shape is not None:
        parameters, extra = dict(shape.signature.parameters), shape.extra
    else:
        taken = [p for p in signature_of(fn).parameters.values() if p.name != TX]
        parameters, extra = dict(zip((WHOLE,), taken, strict=False)), None
    if all(p.annotation is p.empty for p in parameters.values()):
        return None
    return Types(fn, parameters, name, extra)


def takes_transaction(fn: Callable[..., Any]) -> bool:
    """Whether the worker gives it the transaction that records its success."""
    return _has_transaction(signature_of(fn))


def _has_transaction(signature: inspect.Signature) -> bool:
    """Whether there is a ``tx`` that is the transaction; annotated as something else it is payload."""
    parameter = signature.parameters.get(TX)
    if parameter is None or parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        return False
    if parameter.default is IN_TRANSACTION or parameter.annotation is parameter.empty:
        return True
    said = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
    text = said if isinstance(said, str) else inspect.formatannotation(said)
    return re.search(r"\bConnection\b", text) is not None or text.rpartition(".")[2] == "Any"
