"""A handler may fork. Only the process that entered it may come out of it: a copy that did would act as the worker.

It would mark the task as ended in the memory that it shares with the supervisor, while the handler still runs; wait for
more work without the threads that bring it; and speak on sockets that are its parent's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """Called where a handler's code has returned or raised; does not come back in a process other than ``pid``.

    The copy ends as a program of its own would: with the code of its SystemExit, with 1 and a traceback on stderr
    after another error, with 0 otherwise; what it wrote is flushed, no exit handler runs.
    """
    if os.getpid() == pid:
        return
    code = 1
    with contextlib.suppress(BaseException):
        code = _code(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def _code(error: BaseException | None) -> int:
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
    return 0 if error is None else 1
