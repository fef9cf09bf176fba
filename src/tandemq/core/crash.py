"""Crash points: named places on the arrows of a task's life where a test can make the process die.

``TANDEMQ_CRASH=name:n:action`` arms one point: at its ``n``-th pass the action happens. Actions are
``kill9`` (SIGKILL to this process), ``stop`` (SIGSTOP), ``raise`` (a RuntimeError) and ``exit`` (``os._exit(70)``).
Unarmed, a point costs one test of a module global.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

POINTS: set[str] = {
    "enqueue.before_commit",
    "enqueue.after_commit",
    "pop.after",
    "claim.after_commit",
    "run.before_handler",
    "run.after_handler",
    "finish.before_commit",
    "finish.after_commit",
    "retry.after_commit",
    "promote.after",
    "expire.before_commit",
    "expire.after_commit",
    "repush.before",
    "replay.after_commit",
    "prune.after_commit",
    "shutdown.before_release",
}

_armed: tuple[str, int, str] | None = None
_passes = 0


def _die(action: str) -> None:
    if action == "kill9":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "exit":
        os._exit(70)
    else:
        raise RuntimeError("crash point")


def arm(spec: str | None) -> None:
    """Arm from a ``name:n:action`` text, or disarm with None. Unknown names and actions are refused."""
    global _armed, _passes
    _passes = 0
    if not spec:
        _armed = None
        return
    name, n, action = [*spec.split(":"), "", ""][:3]
    if spec.count(":") != 2 or not n.isdecimal() or int(n) < 1:
        raise ValueError(f"TANDEMQ_CRASH={spec!r} must be name:n:action, n counted from 1")
    if name not in POINTS:
        raise ValueError(f"TANDEMQ_CRASH: {name!r} is no crash point; known: {', '.join(sorted(POINTS))}")
    if action not in {"kill9", "stop", "raise", "exit"}:
        raise ValueError(f"TANDEMQ_CRASH: {action!r} is no action; use kill9, stop, raise or exit")
    _armed = (name, int(n), action)


def crash_point(name: str, _act: Callable[[str], None] = _die) -> None:
    """Die here if this point is armed and its turn has come; otherwise one comparison."""
    if _armed is None:
        return
    global _passes
    armed, n, action = _armed
    if name == armed:
        _passes += 1
        if _passes == n:
            _act(action)
