"""One of several processes behind one port: ``python -m tandemq.http.process``, started by ``processes``.

It reads one JSON line of instructions from stdin and says on an inherited pipe when it serves. TERM ends it when the
requests under way are answered, further ones change nothing (an init system may send one to every process, and the
parent another). End of file on stdin means that the parent is gone, and is taken for a TERM.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading

from tandemq import links, logs, metrics
from tandemq.app import TandemQ, load_app
from tandemq.http.options import ApiOptions
from tandemq.http.processes import READY
from tandemq.http.server import serve


def main() -> None:
    """Serve until told to end."""
    orders = json.loads(sys.stdin.readline())
    parent_gone = threading.Event()
    threading.Thread(target=_end_with_the_parent, args=(parent_gone,), name="tandemq-parent", daemon=True).start()
    if orders["own_folder"]:  # in one that others use too the numbers are theirs as well
        metrics.number_process(orders["number"])
    links.do_not_warn()
    options = ApiOptions(**{**orders["options"], "cors_origins": tuple(orders["options"]["cors_origins"])})
    listeners = [socket.socket(fileno=fd) for fd in orders["fds"]]
    app = load_app(orders["app"]) if orders["app"] else TandemQ()
    logs.of_settings(app.settings, "api")
    app.import_tasks()
    with app:
        serve(app, options, listeners, lambda: _report(orders["report_fd"]), may_hurry=False)
    if parent_gone.is_set() and orders["own_folder"]:  # nobody else would remove it
        shutil.rmtree(orders["own_folder"], ignore_errors=True)


def _report(fd: int) -> None:
    os.write(fd, READY)


def _end_with_the_parent(gone: threading.Event) -> None:
    sys.stdin.read()
    gone.set()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
