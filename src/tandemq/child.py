"""The child process of a worker: imports the application, runs its handlers, and dies with its supervisor.

``python -m tandemq.child`` reads one JSON line of instructions, then control lines, from stdin; it reports on an
inherited pipe. Lines to the child: ``drain``, ``stop``, ``cancel`` (a cancel request is marked in the
arena), ``dead ID,ID``. Lines from it: ``ready JSON``, ``failed JSON``,
``away`` (a server cannot be reached).
End of file on stdin means that the supervisor is gone: nothing renews the leases any more, so nothing more is begun,
and the process ends before they do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from typing import IO, Any

from tandemq import links, logs, metrics
from tandemq.app import load_app
from tandemq.core import crash
from tandemq.core.clock import SystemClock
from tandemq.core.collecting import calm_collector
from tandemq.core.errors import TandemQError, Unavailable
from tandemq.worker.arena import Arena
from tandemq.worker.child import Child

_log = logging.getLogger("tandemq.worker")
EXIT_BAD_APP, EXIT_AWAY = 2, 3


def _control(child: Child, lines: IO[str]) -> None:
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word == "drain":
            child.drain()
        elif word == "stop":
            threading.Thread(target=child.stop, name="tandemq-stop", daemon=True).start()
        elif word == "cancel":
            child.executor.stop_unwanted()
        elif word == "dead":
            child.tell_dead([int(task_id) for task_id in rest.split(",")])
    # The supervisor is gone. What runs may end while the leases stand; nobody renews them any more.
    child.drain()
    if not child.wait_over(child.leases_stand_s()):
        os._exit(1)


def _own_pipes(orders: dict[str, Any]) -> tuple[IO[str], IO[str]]:
    """The control and the report pipe, out of reach of handlers and of whatever they start.

    A handler's subprocess would read stdin (and eat a "drain"); one that it forks would hold the pipes open.
    """
    control_fd = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    own = [control_fd, orders["report_fd"], orders["arena_fd"]]
    for fd in own:
        os.set_inheritable(fd, False)

    def close_own() -> None:
        # Emptied: in a fork of the fork these numbers are somebody else's.
        while own:
            with contextlib.suppress(OSError):
                os.close(own.pop())

    os.register_at_fork(after_in_child=close_own)
    return os.fdopen(control_fd, "r"), os.fdopen(orders["report_fd"], "w", buffering=1)


def _first_line() -> str:
    """Unbuffered, so that the control lines behind it stay in the pipe."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line.decode()


def main() -> None:
    """Entry point of the process."""
    # Ctrl-C reaches the whole group; the supervisor decides. A handler, not SIG_IGN, which subprocesses would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    orders = json.loads(_first_line())
    control, report = _own_pipes(orders)
    logs.configure(
        "child", log_format=orders["log_format"], level=orders["log_level"], secrets=orders["secrets"],
        worker=orders["worker_id"], is_loaded=False,
    )  # fmt: skip
    crash.arm(os.environ.get("TANDEMQ_CRASH"), os.environ.get("TANDEMQ_CRASH_DIR"))
    links.do_not_warn()
    if orders["numbered"]:
        metrics.number_process(orders["number"])
    try:
        app = load_app(orders["app"])
        app.import_tasks()
        logs.loaded()
        child = Child(
            app.registry,
            app.settings,
            orders,
            store=app.store,
            broker=app.broker,
            arena=Arena(orders["arena_fd"]),
            clock=SystemClock(),
            encoder=app.encoder,
        )
    except Unavailable as away:
        _log.warning("a child cannot start yet: %s", away)
        report.write("away\n")
        os._exit(EXIT_AWAY)
    except (TandemQError, ImportError, SyntaxError) as bad:
        report.write(f"failed {json.dumps(str(bad))}\n")
        os._exit(EXIT_BAD_APP)
    except Exception as bad:
        _log.exception("importing %s failed", orders["app"])
        report.write(f"failed {json.dumps(f'{type(bad).__name__}: {bad}')}\n")
        os._exit(EXIT_BAD_APP)
    calm_collector()
    child.start()
    signal.signal(signal.SIGTERM, lambda *_: child.drain())
    with contextlib.suppress(BrokenPipeError):  # the supervisor is gone already: the end of stdin says so in order
        report.write(f"ready {json.dumps({'queues': child.terms.queues})}\n")
    threading.Thread(target=_control, args=(child, control), name="tandemq-control", daemon=True).start()
    while not child.wait_over(3600.0):
        pass
    logging.shutdown()
    os._exit(child.exit_code)  # threads that still run a handler are the supervisor's to answer for


if __name__ == "__main__":
    main()
