"""What tandemq's processes log: one line a record, as text or as JSON, with the running task on it and without secrets.

``configure`` sets up the root logger of a process that is tandemq's own (worker, child, mover, reconciler, API); a
program that uses tandemq as a library sets up its own, and an application that has done so is left alone.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from tandemq.core.masking import Mask
from tandemq.core.settings import Settings
from tandemq.core.values import rfc3339
from tandemq.handler import running_task

TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
#: What a record may carry, and its name in a line of JSON.
_OF_TASK = {"task_id": "task_id", "queue": "queue", "task_type": "type", "attempt": "attempt"}


class OfTask(logging.Filter):
    """Puts the task that is running here on a record; one that names a task itself keeps it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        if not hasattr(record, "task_id") and (task := running_task()) is not None:
            record.task_id, record.queue = task.id, task.queue
            record.task_type, record.attempt = task.task_type, task.attempt
        return True


class _Masked(logging.Formatter):
    """Whatever is formatted leaves without secrets, tracebacks included."""

    def __init__(self, mask: Mask, template: str | None = None) -> None:
        super().__init__(template)
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return self._mask(super().format(record))


class TextLines(_Masked):
    """For people. A line that does not come from the task's own logger gets the task in front of its text."""

    def __init__(self, mask: Mask) -> None:
        super().__init__(mask, TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in the library
        """With the task, unless it is there."""
        task_id = getattr(record, "task_id", None)
        if task_id is not None and str(task_id) not in record.message:
            about = f"[{getattr(record, 'task_type', '?')} {task_id} attempt {getattr(record, 'attempt', '?')}]"
            record.message = f"{about} {record.message}"
        return super().formatMessage(record)


class JsonLines(_Masked):
    """For machines: one object a line; what is not known is left out.

    ``fixed`` fields are on every line. Times are RFC 3339 in UTC. An exception is one field, ``exception``.
    """

    def __init__(self, mask: Mask, fixed: dict[str, Any]) -> None:
        super().__init__(mask)
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        """The line, ASCII only."""
        line: dict[str, Any] = {
            "ts": rfc3339(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._mask(record.getMessage()),
            **self._fixed,
            "pid": record.process,
            "thread": record.threadName,
        }
        line |= {name: getattr(record, of) for of, name in _OF_TASK.items() if hasattr(record, of)}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self._mask(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = self._mask(record.stack_info)
        return json.dumps(line, default=str)


def configure(
    process: str, *, log_format: str, level: str | int, secrets: Iterable[str] = (), worker: str | None = None
) -> None:
    """Log to stderr, unless the application has set up the root logger already.

    ``process`` and ``worker`` name this process on every line of JSON. ``secrets`` are hidden wherever they appear.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    mask = Mask(secrets)
    handler = logging.StreamHandler()
    handler.addFilter(OfTask())
    if log_format == "json":
        handler.setFormatter(JsonLines(mask, {"process": process} | ({"worker": worker} if worker else {})))
        logging.captureWarnings(True)
        _catch_the_rest()
    else:
        handler.setFormatter(TextLines(mask))
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)


def of_settings(settings: Settings, process: str) -> None:
    """``configure`` as the settings say."""
    configure(process, log_format=settings.log_format, level=settings.log_level, secrets=settings.secrets())


def name_worker(worker: str) -> None:
    """From here on lines of JSON carry this worker's id: it is made after the first of them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter._fixed["worker"] = worker


def _catch_the_rest() -> None:
    """Exceptions that nobody catches would be written by the interpreter, over many lines."""
    log = logging.getLogger("tandemq")

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("an exception ended the process", exc_info=(kind, error, trace))

    def uncaught_in(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread else "?"
            log.error("an exception ended the thread %s", name, exc_info=args.exc_value)

    sys.excepthook, threading.excepthook = uncaught, uncaught_in
