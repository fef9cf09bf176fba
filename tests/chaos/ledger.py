"""The ledger: what was asked for and what ran, in files outside the queue under test. Imports no queue.

One folder per run. Every file ``*.jsonl`` in it holds one JSON object a line, each written whole by one O_APPEND write,
so that lines of many processes never mix and outlive ``kill -9``. A task is named by its ``ref``, a text that its
producer made up and that travels in its payload; no id of a queue is needed. ``t`` is CLOCK_MONOTONIC in seconds, which
all processes of a machine share. Events, by ``e``:

``enq``      ``r``: ``invoke`` (synced to the disk before the queue is asked), then ``ok`` (the queue said "stored"),
             ``fail`` (it said "not stored") or ``info`` (nobody knows). No second line means the producer died: info.
             ``invoke`` says what is expected of the task, where it is not the default: see ``Expectation``.
``cancel``   ``r``: ``invoke``, then ``cancelled`` (acknowledged: never begins any more), another word, or ``info``.
``exec``     a handler began. ``fence``, ``token``: its right to run, where the queue has such; ``pid``.
``end``      a handler came to its end.
``effect``   ``r``: ``applied``, ``already`` (by an earlier run) or ``refused`` (a later run has been seen): what the
             resource of ``effects.py`` answered a run; ``fence``, ``token``.
``applied``  read from the resource when all is over: one line per write that it took; ``fence``, ``token``.
``final``    read from the queue when all is over, one line per task it stores: ``state`` (``done``, ``dead``,
             ``cancelled``), and where it knows them ``attempts`` (runs it counted), ``fence`` (of the last run),
             ``by`` (the fence of the run whose result it keeps).
``left``     not final when all is over; ``where`` it sits.
``link``     one row of the user's own table that a run wrote in the transaction of its success.
``surprise`` an error that no contract names: ``what``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must become of a task that was accepted.

    ``ends``: the final states allowed. ``most``: runs that may begin, None for at least once. ``limit``: attempts that
    the queue may count. ``after``: it may not begin before this ``t``. ``effect``: done means that its effect is there.
    ``prunable``: its row may be gone in the end. ``last``: it is link 0 of a chain ``ref/0`` to ``ref/last``, each
    enqueued by the one before, each with one row of its own.
    """

    kind: str = "plain"
    ends: tuple[str, ...] = ("done",)
    most: int | None = None
    limit: int | None = None
    after: float | None = None
    effect: bool = True
    prunable: bool = False
    last: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Only what is not the default."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    @classmethod
    def of(cls, event: dict[str, Any]) -> Expectation:
        """From an ``invoke`` line."""
        given = {name: event[name] for name in _DEFAULTS if name in event}
        return cls(**given | {"ends": tuple(given.get("ends", ("done",)))})


_DEFAULTS = {f.name: f.default for f in fields(Expectation)}


def now() -> float:
    """Seconds, the same in every process of this machine."""
    return round(time.monotonic(), 6)


class Ledger:
    """One file, for appending. Safe for threads, and for many processes with the same file."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self.path = Path(folder) / f"{name}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, events: Iterable[dict[str, Any]], *, sync: bool = False) -> None:
        """Append them together. With ``sync`` they are on the disk when this returns."""
        data = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
        os.write(self._fd, data)
        if sync:
            os.fsync(self._fd)

    def intent(self, expected: dict[str, Expectation]) -> None:
        """Before the queue is asked: these refs are about to be enqueued."""
        at = now()
        self.write(
            [{"e": "enq", "ref": ref, "r": "invoke", "t": at} | one.to_json() for ref, one in expected.items()],
            sync=True,
        )

    def outcome(self, refs: Iterable[str], result: str) -> None:
        """After it has answered: ok, fail or info."""
        at = now()
        self.write([{"e": "enq", "ref": ref, "r": result, "t": at} for ref in refs], sync=True)

    def cancel(self, ref: str, result: str) -> None:
        """Around a cancel: invoke, then the queue's word, or info."""
        self.write([{"e": "cancel", "ref": ref, "r": result, "t": now()}], sync=True)

    def ran(self, event: str, ref: str, **what: Any) -> None:
        """From a handler: ``exec``, ``end`` or ``effect``."""
        self.write([{"e": event, "ref": ref, "pid": os.getpid(), "t": now()} | what])

    def surprise(self, what: str) -> None:
        """An error that no contract names."""
        self.write([{"e": "surprise", "what": what[:1000], "t": now()}], sync=True)


def read(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Every whole line of every file of the folder; a line that a kill has cut short is none."""
    for path in sorted(Path(folder).glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield json.loads(line)
