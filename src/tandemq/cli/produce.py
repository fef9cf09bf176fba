"""``tandemq enqueue``: one task from the command line, or many from NDJSON."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tandemq.app import TandemQ
from tandemq.cli import exits, flags, output
from tandemq.cli.lines import BadLine, Importer, Line, read_lines
from tandemq.cli.session import Session, pass_session
from tandemq.core.body import new_task, parse_json
from tandemq.core.errors import TandemQError, TaskNotFound
from tandemq.core.task import UNSET, NewTask, Unset
from tandemq.handle import Handle


@click.command()
@click.argument("task_type", metavar="TYPE", type=flags.TASK_TYPE, required=False)
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--queue", type=flags.QUEUE, help="Queue; default: the task's, else 'default'.")
@click.option("--priority", type=flags.PRIORITY, help="low, medium, high, critical or an integer; higher runs first.")
@click.option("--delay", type=flags.SECONDS, help="Not before this many seconds from now.")
@click.option("--run-at", type=flags.INSTANT, help="Not before this RFC 3339 time.")
@click.option("--expires", type=flags.EXPIRES, help="Dead unless started by then: seconds from now, or a time.")
@click.option("--max-retries", type=int, help="Runs allowed beyond the first; 0: never begun twice.")
@click.option("--key", help="Idempotency key: the same key with the same task makes no second task.")
@click.option(
    "--timeout", type=flags.TIMEOUT, default=UNSET, show_default=False, help="Seconds for one attempt, or 'none'."
)
@click.option(
    "--file",
    "path",
    metavar="FILE|-",
    help="NDJSON, a task a line: type, payload, queue, priority, delay, run_at, expires, max_retries, idempotency_key.",
)
@click.option("--keep-going", is_flag=True, help="With --file: report bad lines and go on (exit code 1 at the end).")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="With --file: leave out the first N lines.")
@flags.as_json
@pass_session
def enqueue(
    session: Session,
    /,
    task_type: str | None,
    payload: str | None,
    path: str | None,
    keep_going: bool,
    skip: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Store a task of TYPE with the payload JSON (an object, default {}), or the tasks of a file."""
    if path is not None:
        if task_type is not None or any(map(_on_the_command_line, options)):
            raise click.UsageError("--file takes it all from its lines; TYPE, JSON and task options do not go with it")
        return _enqueue_file(_producing(session), path, FileOptions(keep_going, skip, as_json))
    if task_type is None:
        raise click.UsageError("give the TYPE of a task, or --file")
    if keep_going or skip:
        raise click.UsageError("--keep-going and --skip go with --file")
    return _enqueue_one(_producing(session), _one(task_type, payload, **options), as_json)


def _on_the_command_line(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _producing(session: Session) -> TandemQ:
    # Registered tasks bring their own queue, priority and retries.
    session.app.import_tasks()
    return session.app


def _one(
    task_type: str,
    payload: str | None,
    *,
    key: str | None,
    run_at: datetime | None,
    timeout: float | Unset | None,
    **options: Any,
) -> NewTask:
    body = {} if payload is None else parse_json(payload, "payload")
    return NewTask(task_type, body, run_at=run_at, idempotency_key=key, timeout=timeout, **options)


def _enqueue_one(app: TandemQ, new: NewTask, as_json: bool) -> int:
    (handle,) = app.enqueue_many([new])
    shape: dict[str, Any] = {"id": handle.id, "id_str": str(handle.id), "created": handle.created}
    if handle.created:
        said = f"task {handle.id} enqueued"
    else:
        shape["state"] = _state(handle)
        said = f"duplicate of task {handle.id}, state {shape['state'] or 'purged since'}: it has this key"
    if as_json:
        output.document(shape)
    else:
        click.echo(said)
    return 0


def _state(handle: Handle[Any]) -> str | None:
    """How the task is that has the key; None if its row has gone since."""
    try:
        return handle.state()
    except TaskNotFound:
        return None


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How a file of lines is read."""

    keep_going: bool
    skip: int
    as_json: bool


def _enqueue_file(app: TandemQ, path: str, options: FileOptions) -> int:
    importer = Importer(
        insert=lambda news: [handle.created for handle in app.enqueue_many(news)],
        keep_going=options.keep_going,
        on_bad=warn_of_line,
    )
    # JSON may escape every character of the longest payload as \uXXXX, and carries the other fields besides.
    return feed(importer, path, options, max_bytes=6 * app.settings.max_payload_bytes + (1 << 16), task_of=new_task)


def warn_of_line(number: int, bad: TandemQError) -> None:
    """A line that was left out."""
    output.warn(f"line {number}: {exits.line_of(bad)}")


def feed(
    importer: Importer, path: str, options: FileOptions, *, max_bytes: int, task_of: Callable[[Any], NewTask]
) -> int:
    """Store the tasks of a file, with a progress bar, and say how many; the exit code."""
    signal.signal(signal.SIGINT, importer.on_interrupt)
    try:
        with click.open_file(path, "rb") as stream, _bar(path) as bar:
            lines = read_lines(stream, skip=options.skip, max_bytes=max_bytes, task_of=task_of)
            importer.run(_shown(lines, bar))
    except (TandemQError, KeyboardInterrupt) as stopped:
        _summary(importer, options)
        again = "correct the line and go on" if isinstance(stopped, BadLine) else "go on"
        output.warn(f"stopped; {importer.tally.stored} tasks stored; {again} with --skip {importer.tally.done}")
        raise
    except OSError as bad:
        raise click.FileError(path, bad.strerror or str(bad)) from bad
    _summary(importer, options)
    return exits.FAILED if importer.tally.bad else 0


def _summary(importer: Importer, options: FileOptions) -> None:
    tally = importer.tally
    if options.as_json:
        output.document(tally.to_json())
        return
    parts = [f"{tally.stored} tasks stored"]
    parts += [f"{tally.existing} already there"] if tally.existing else []
    parts += [f"{tally.bad} bad lines"] if tally.bad else []
    click.echo(", ".join(parts))


def _bar(path: str) -> Any:
    """A progress bar over the file's bytes on stderr, drawn on a terminal only."""
    # A pipe has no size: then the bar counts bytes.
    size = (Path(path).stat().st_size or None) if path != "-" else None
    return click.progressbar(
        iter(()),
        length=size,
        label="enqueueing",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        update_min_steps=max(1, (size or 1 << 20) // 200),
    )


def _shown(lines: Iterator[Line], bar: Any) -> Iterator[Line]:
    for line in lines:
        yield line
        bar.update(line.size)
