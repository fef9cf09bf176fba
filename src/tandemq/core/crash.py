"""Crash points: named places on the arrows of a task's life where a test can make the process die, stop or wait.

``TANDEMQ_CRASH`` arms points, ``point:n:action`` each, several with commas between: at the ``n``-th pass of the point
(``*``: at every pass) the action happens.

- ``kill9``: SIGKILL to this process. ``stop``: SIGSTOP. ``exit``: ``os._exit(70)``. ``raise``: a RuntimeError.
- ``sleep``: for a second, or as ``point:n:sleep:0.2`` says.
- ``barrier``: wait until the file ``POINT.go`` is in ``TANDEMQ_CRASH_DIR``, so that a test decides which of two
  processes goes on first.

Where ``TANDEMQ_CRASH_DIR`` is set every action first leaves a file ``POINT.PID.PASS`` there: what a test waits for, and
the proof that a point was reached. Unarmed, a point costs one test of a module global.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tandemq.core.clock import SystemClock

POINTS: frozenset[str] = frozenset(
    {
        "enqueue.before_insert",
        "enqueue.before_commit",
        "enqueue.after_commit",
        "enqueue.after_push",
        "pop.before",
        "pop.after",
        "claim.before_commit",
        "claim.after_commit",
        "claim.after_hand_over",
        "run.before_begin",
        "run.before_handler",
        "run.after_handler",
        "run.after_end",
        "renew.before",
        "renew.after",
        "finish.before_commit",
        "finish.after_commit",
        "finish.before_tx_commit",
        "finish.after_tx_commit",
        "retry.after_commit",
        "retry.after_push",
        "promote.before",
        "promote.after",
        "expire.after_select",
        "expire.before_commit",
        "expire.after_commit",
        "expire.after_push",
        "repush.before",
        "repush.after",
        "rebuild.after_begin",
        "rebuild.after_chunk",
        "cancel.before_commit",
        "replay.before_commit",
        "replay.after_commit",
        "replay.after_push",
        "prune.before_commit",
        "prune.after_commit",
        "purge.after_archive",
        "shutdown.signal",
        "shutdown.before_release",
        "shutdown.after_release",
    }
)
ACTIONS = ("kill9", "stop", "exit", "raise", "sleep", "barrier")
SLEEP_S, LOOK_S = 1.0, 0.002
#: Stands for "every pass".
EVERY = 0


@dataclass(slots=True)
class _Armed:
    point: str
    n: int
    act: Callable[[int], None]
    passes: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def passed(self, turn: int) -> None:
        if self.n in {EVERY, turn}:
            self.act(turn)


_armed: list[_Armed] | None = None


def arm(spec: str | None, folder: str | Path | None = None) -> None:
    """Arm the points of ``spec``, instead of those armed before; None or "" disarms. ValueError for what is unknown."""
    global _armed
    _armed = [_parse(one.strip(), Path(folder) if folder else None) for one in spec.split(",")] if spec else None


def arm_call(point: str, act: Callable[[], None], n: int = EVERY) -> None:
    """Call ``act`` in this process at the ``n``-th pass, beside what is armed already: for races between threads."""
    global _armed
    _armed = [*(_armed or ()), _Armed(_known(point, point), n, lambda _: act())]


def crash_point(name: str) -> None:
    """Act here if this point is armed and its turn has come; otherwise one comparison."""
    if _armed is None:
        return
    # All count before any acts: one that raises must not make those behind it late.
    for one, turn in [(one, next(one.passes)) for one in _armed if one.point == name]:
        one.passed(turn)


def _parse(spec: str, folder: Path | None) -> _Armed:
    point, n, action, argument = [*spec.split(":", 3), "", "", ""][:4]
    if spec.count(":") < 2 or not (n == "*" or (n.isdecimal() and int(n) > 0)):
        raise ValueError(f"TANDEMQ_CRASH={spec!r} must be point:n:action, n counted from 1, or * for every pass")
    _known(point, spec)
    if action not in ACTIONS:
        raise ValueError(f"TANDEMQ_CRASH={spec!r}: {action!r} is no action; use one of {', '.join(ACTIONS)}")
    if action == "barrier" and folder is None:
        raise ValueError(f"TANDEMQ_CRASH={spec!r}: a barrier needs TANDEMQ_CRASH_DIR")
    seconds = _seconds(argument, spec) if action == "sleep" else SLEEP_S

    def act(turn: int) -> None:
        if folder is not None:
            (folder / f"{point}.{os.getpid()}.{turn}").touch()
        _act(action, seconds, folder, point)

    return _Armed(point, EVERY if n == "*" else int(n), act)


def _known(point: str, spec: str) -> str:
    if point not in POINTS:
        raise ValueError(f"TANDEMQ_CRASH={spec!r}: {point!r} is no crash point; known: {', '.join(sorted(POINTS))}")
    return point


def _seconds(argument: str, spec: str) -> float:
    try:
        seconds = float(argument or SLEEP_S)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 3600:
        raise ValueError(f"TANDEMQ_CRASH={spec!r}: {argument!r} is no number of seconds from 0 to 3600")
    return seconds


def _act(action: str, seconds: float, folder: Path | None, point: str) -> None:
    match action:
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # To this very thread: a signal to the process is taken by its main thread, while this one runs on past it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "exit":
            os._exit(70)
        case "sleep":
            SystemClock().sleep(seconds)
        case "barrier" if folder is not None:
            while not (folder / f"{point}.go").exists():
                SystemClock().sleep(LOOK_S)
        case _:
            raise RuntimeError(f"crash point {point}")
