"""The child process of a worker: imports the application, runs its handlers, and dies with its supervisor.

``python -m tandemq.child`` reads one JSON line of instructions, then control lines, from stdin; it reports on an
inherited pipe. Lines to the child: ``drain``, ``stop``, ``dead ID,ID``. Lines from it: ``ready JSON``, ``failed JSON``.
End of file on stdin means that the supervisor is gone: nothing renews the leases any more, so nothing more is begun,
and the process ends before they do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import IO

from tandemq.app import load_app
from tandemq.core import crash
from tandemq.core.clock import SystemClock
from tandemq.core.errors import TandemQError
from tandemq.worker.arena import Arena
from tandemq.worker.child import Child

_log = logging.getLogger("tandemq.worker")
EXIT_BAD_APP = 2


def _control(child: Child, lines: IO[str]) -> None:
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word == "drain":
            child.drain()
        elif word == "stop":
            threading.Thread(target=child.stop, name="tandemq-stop", daemon=True).start()
        elif word == "dead":
            child.tell_dead([int(task_id) for task_id in rest.split(",")])
    # The supervisor is gone. What runs may end within the lease; nobody renews it after that.
    child.drain()
    if not child.wait_over(child.terms.begin_s):
        os._exit(1)


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    orders = json.loads(sys.stdin.readline())
    logging.basicConfig(level=orders["log_level"], format=orders["log_format"])
    crash.arm(os.environ.get("TANDEMQ_CRASH"))
    report = os.fdopen(orders["report_fd"], "w", buffering=1)
    try:
        app = load_app(orders["app"])
        app.import_tasks()
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
    except (TandemQError, ImportError, SyntaxError) as bad:
        report.write(f"failed {json.dumps(str(bad))}\n")
        os._exit(EXIT_BAD_APP)
    except Exception as bad:
        _log.exception("importing %s failed", orders["app"])
        report.write(f"failed {json.dumps(f'{type(bad).__name__}: {bad}')}\n")
        os._exit(EXIT_BAD_APP)
    signal.signal(signal.SIGTERM, lambda *_: child.drain())
    child.start()
    report.write(f"ready {json.dumps({'queues': child.terms.queues})}\n")
    threading.Thread(target=_control, args=(child, sys.stdin), name="tandemq-control", daemon=True).start()
    while not child.wait_over(3600.0):
        pass
    logging.shutdown()
    os._exit(0)  # threads that still run a handler are the supervisor's to answer for


if __name__ == "__main__":
    main()
