"""Handlers that raise what no handler should: what is not an Exception, and what cannot be printed or pickled."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tandemq import RetryPolicy, TandemQ
from tests import probe

app = TandemQ()
QUICK = RetryPolicy(backoff=[0.02], jitter=0)


class Custom(BaseException):
    """Not an Exception, and nothing that Python knows."""


#: Name -> (what is raised, the type that is recorded, the text that is recorded).
NO_EXCEPTIONS: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "exit 0": (lambda: SystemExit(0), "SystemExit", "0"),
    "exit 3": (lambda: SystemExit(3), "SystemExit", "3"),
    "keyboard": (lambda: KeyboardInterrupt("by hand"), "KeyboardInterrupt", "by hand"),
    "generator": (lambda: GeneratorExit("closed"), "GeneratorExit", "closed"),
    "cancelled": (lambda: asyncio.CancelledError("called off"), "CancelledError", "called off"),
    "custom": (lambda: Custom("on purpose"), "Custom", "on purpose"),
}


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class StrIsNone(Exception):
    def __str__(self) -> Any:
        return {"kind": "none"}.get("text")

    __repr__ = __str__


class StrNeverEnds(Exception):
    def __str__(self) -> str:
        return str(self)


class Slippery(str):
    """A text that cannot be cut or encoded."""

    __slots__ = ()

    def __getitem__(self, *_: object) -> NoReturn:
        raise RuntimeError("no slices")

    def encode(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("no bytes")


class StrIsSlippery(Exception):
    def __str__(self) -> str:
        return Slippery("slippery")


class NeedsArguments(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first, self.second = first, second


class ReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


class NamelessType(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no name for you")


class Nameless(Exception, metaclass=NamelessType):
    pass


class Faceless(Exception):
    """Every isinstance() with it raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> NoReturn:
        raise RuntimeError("no class for you")


class Uncomparable(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise RuntimeError("no comparison for you")

    def __bool__(self) -> NoReturn:
        raise RuntimeError("neither true nor false")


def _cyclic() -> BaseException:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    one.__context__, other.__context__ = other, one
    return one


def _noted() -> BaseException:
    noted = ValueError("noted")
    noted.__notes__ = [ReprRaises(), "n" * 1_000_000]  # type: ignore[list-item]
    return noted


def _nested_groups() -> BaseException:
    group: BaseException = StrRaises()
    for depth in range(200):
        group = BaseExceptionGroup(f"depth {depth}", [group])
    return group


UNPRINTABLE: dict[str, Callable[[], BaseException]] = {
    "str raises": StrRaises,
    "str exits": StrExits,
    "str is none": StrIsNone,
    "str never ends": StrNeverEnds,
    "str is slippery": StrIsSlippery,
    "needs arguments": lambda: NeedsArguments(1, 2),
    "holds a socket": lambda: OSError("socket", socket.socket()),
    "holds a lock": lambda: RuntimeError(threading.Lock()),
    "holds a lambda": lambda: RuntimeError(lambda: None),
    "cyclic cause": _cyclic,
    "group of 10,000": lambda: ExceptionGroup("many", [ValueError(f"member {n}" * 10) for n in range(10_000)]),
    "nested groups": _nested_groups,
    "arguments without a repr": lambda: ValueError(ReprRaises(), 1),
    "notes": _noted,
    "nameless": Nameless,
    "faceless": Faceless,
    "uncomparable": Uncomparable,
    "empty": Exception,
    "surrogates and zeros": lambda: ValueError("\ud800 \x00 \udfff"),
    "five megabytes": lambda: ValueError("💥" * 1_250_000),
}


def _make(kind: str) -> BaseException:
    return NO_EXCEPTIONS[kind][0]() if kind in NO_EXCEPTIONS else UNPRINTABLE[kind]()


@app.task(name="raises", retry=QUICK, max_retries=1)
def raises(kind: str) -> None:
    probe.start()
    raise _make(kind)


@app.task(name="araises", retry=QUICK, max_retries=1)
async def araises(kind: str) -> None:
    probe.start()
    await asyncio.sleep(0)
    raise _make(kind)


@app.task(name="gathers", retry=QUICK, max_retries=1)
async def gathers(kind: str) -> None:
    """Raised in an asyncio task of the handler's own, which asyncio lets out of the event loop as well."""
    probe.start()

    async def inner() -> None:
        raise _make(kind)

    await asyncio.gather(inner(), asyncio.sleep(0))


@app.task(name="next")
def following(n: int = 0) -> Any:
    with probe.running():
        return n


@app.task(name="anext")
async def afollowing(n: int = 0) -> Any:
    with probe.running():
        await asyncio.sleep(0)
        return n
