"""What tandemq's processes log: one line a record, as text or as JSON, with the running task on it and without secrets.

``configure`` sets up the root logger of a process that is tandemq's own (worker, child, mover, reconciler, API); a
program that uses tandemq as a library sets up its own, and an application that has done so is left alone.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import sys
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from tandemq.core.masking import HIDDEN, SECRET_NAME, Mask
from tandemq.core.settings import Settings
from tandemq.core.values import rfc3339
from tandemq.handler import running_task

TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
#: What a record may carry, and its name in a line of JSON.
_OF_TASK = {"task_id": "task_id", "queue": "queue", "task_type": "type", "attempt": "attempt"}
#: What every record has; the rest came with ``extra``.
_STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", *_OF_TASK}
#: Of mappings and lists in ``extra``; what is deeper is a text.
MAX_DEPTH = 4


class OfTask(logging.Filter):
    """Puts the task that is running here on a record; one that names a task itself keeps it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        if not hasattr(record, "task_id") and (task := running_task()) is not None:
            record.task_id, record.queue = task.id, task.queue
            record.task_type, record.attempt = task.task_type, task.attempt
        return True


class _Masked(logging.Formatter):
    """Whatever is formatted leaves without secrets, tracebacks included; a call that is wrong costs its arguments."""

    def __init__(self, mask: Mask, template: str | None = None) -> None:
        super().__init__(template)
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return self._mask(super().format(_formattable(record)))


def _formattable(record: logging.LogRecord) -> logging.LogRecord:
    """The record, or one that can be formatted where its arguments do not fit: logging would print them raw."""
    try:
        record.getMessage()
    except Exception as wrong:
        record = copy.copy(record)
        template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        record.msg, record.args = f"{template} (wrong arguments of a log call: {type(wrong).__name__})", None
    return record


class _Lines(logging.StreamHandler[TextIO]):
    """To stderr. A record that cannot be written is one line without its contents."""

    def __init__(self, root_level: str | int) -> None:
        super().__init__()
        self.root_level = root_level

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in the library
        """Nothing raw, and never an error."""
        kind = getattr(sys.exc_info()[0], "__name__", "?")
        text = f"a line of log from {record.pathname}:{record.lineno} cannot be written: {kind}"
        fallback = logging.makeLogRecord(
            {"name": "tandemq", "levelname": "ERROR", "levelno": logging.ERROR, "msg": text}
        )
        with contextlib.suppress(Exception):
            self.stream.write(self.format(fallback) + self.terminator)
            self.flush()


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

    ``fixed`` fields are on every line. Times are RFC 3339 in UTC. An exception is one field, ``exception``. What a call
    gives as ``extra`` is there under its names, unless these are ours.
    """

    def __init__(self, mask: Mask, fixed: dict[str, Any]) -> None:
        super().__init__(mask)
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        """The line, ASCII only."""
        record = _formattable(record)
        line: dict[str, Any] = self._extra(record) | {
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

    def _extra(self, record: logging.LogRecord) -> dict[str, Any]:
        given = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        return {name: HIDDEN if SECRET_NAME.fullmatch(name) else self._plain(value) for name, value in given.items()}

    def _plain(self, value: Any, depth: int = 0) -> Any:
        """As JSON has it, without secrets, however deep or odd."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            return {
                str(k): HIDDEN if SECRET_NAME.fullmatch(str(k)) else self._plain(v, depth + 1) for k, v in value.items()
            }
        if isinstance(value, list | tuple | set) and depth < MAX_DEPTH:
            return [self._plain(v, depth + 1) for v in value]
        return self._mask(str(value))


def configure(
    process: str, *, log_format: str, level: str | int, secrets: Iterable[str] = (), worker: str | None = None,
    is_loaded: bool = True,
) -> None:  # fmt: skip
    """Log to stderr, unless the application has set up the root logger already.

    ``process`` and ``worker`` name this process on every line of JSON. ``secrets`` are hidden wherever they appear.
    Before the application ``is_loaded`` warnings alone are written, and ``loaded`` must follow: it may set up its own.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    mask = Mask(secrets)
    handler = _Lines(level.upper() if isinstance(level, str) else level)
    handler.addFilter(OfTask())
    if log_format == "json":
        handler.setFormatter(JsonLines(mask, {"process": process} | ({"worker": worker} if worker else {})))
        logging.captureWarnings(True)
    else:
        handler.setFormatter(TextLines(mask))
    _catch_the_rest()
    logging.lastResort = handler
    if is_loaded:
        loaded()


def loaded() -> None:
    """The application has been imported: if it has not set up the root logger, what ``configure`` was told counts."""
    root = logging.getLogger()
    if not root.handlers and isinstance(logging.lastResort, _Lines):
        root.setLevel(logging.lastResort.root_level)
        root.addHandler(logging.lastResort)


def of_settings(settings: Settings, process: str) -> None:
    """``configure`` as the settings say."""
    configure(process, log_format=settings.log_format, level=settings.log_level, secrets=settings.secrets())


def name_worker(worker: str) -> None:
    """From here on lines of JSON carry this worker's id: it is made after the first of them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter._fixed["worker"] = worker


def _catch_the_rest() -> None:
    """Exceptions that nobody catches would be written by the interpreter: over many lines, with the secrets in them."""
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

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        what = f"{args.err_msg or 'an exception was ignored'} in {getattr(args.object, '__qualname__', '?')}"
        log.error("%s", what, exc_info=args.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, uncaught_in, unraisable
