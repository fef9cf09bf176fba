"""Verbs that look at tasks and workers, and cancel."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.errors import Unavailable
from tandemq.core.printable import printable, when
from tandemq.core.task import Task
from tandemq.core.values import rfc3339
from tandemq.store.answers import Filter, Page

_OPEN = ("ready", "scheduled", "retrying", "running")
#: Calls for one page: some hundred thousand tasks, a second or two.
LOOKS = 20
_HEADERS = ("ID", "STATE", "TYPE", "QUEUE", "PRIORITY", "RUNS", "RUN AT", "ERROR")


def full_page(find: Callable[..., Page], *, limit: int, after: int | None) -> Page:
    """A page that took some looking, put together from several calls; still not full if it takes too many."""
    items: list[Task] = []
    for _ in range(LOOKS):
        page = find(limit=limit - len(items), after=after)
        items, after = [*items, *page.items], page.next
        if after is None or len(items) >= limit:
            break
    return Page(tuple(items), after)


def show_page(page: Page, as_json: bool, *, limit: int, empty: str) -> None:
    """A page of tasks, and how to get the next one."""
    if as_json:
        output.document({"items": [task.to_json() for task in page.items], "next": page.next})
        return
    is_short = page.next is not None and len(page.items) < limit
    output.table(_HEADERS, [_row(task) for task in page.items], empty="none so far" if is_short else empty)
    if is_short:
        click.echo(f"looked at the tasks down to id {page.next}; look further: --after {page.next}")
    elif page.next is not None:
        click.echo(f"more: --after {page.next}")


def _row(task: Task) -> tuple[object, ...]:
    runs = f"{task.attempts}/{task.max_retries + 1}"
    error = task.last_error and f"{task.error_type}: {task.last_error}"
    return task.id, task.state, task.task_type, task.queue, task.priority, runs, task.run_at, error


def show_task(task: Task, as_json: bool) -> None:
    """One task with everything that is known about it, every failed attempt included."""
    shape = task.to_json()
    if as_json:
        output.document(shape)
        return
    attempts: list[Mapping[str, Any]] = shape.pop("attempts_log")
    del shape["id_str"], shape["payload"], shape["result"]
    output.pairs(shape | {"payload": task.payload, "result": task.result})
    for entry in attempts:
        life = f" (replay {entry['replays']})" if entry["replays"] else ""
        click.echo(
            printable(
                f"attempt {entry['attempt']}{life}: {entry['outcome']}, {entry['started_at'] or '-'} to"
                f" {entry['ended_at']} on {entry['worker_id'] or '-'}: {entry['error_type']}: {entry['error']}"
            )
        )
        if entry["traceback"]:
            output.block(entry["traceback"])


@click.command("list")
@click.option("--status", type=click.Choice(flags.STATES), help="State or stored status.")
@click.option("--queue", type=flags.QUEUE, help="Queue.")
@click.option("--type", "task_type", type=flags.TASK_TYPE, help="Task type.")
@click.option("--worker", help="Id of the worker that holds it or ran it last.")
@click.option("--key", type=flags.KEY, help="Idempotency key.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="Tasks on a page.")
@click.option("--after", type=flags.TASK_ID, help="Next page: the id that the last one named.")
@flags.as_json
@pass_session
def list_tasks(
    session: Session,
    /,
    status: str | None,
    queue: str | None,
    task_type: str | None,
    worker: str | None,
    key: str | None,
    limit: int,
    after: int | None,
    as_json: bool,
) -> int:
    """Tasks, newest first."""
    where = Filter(state=status, queue=queue, task_type=task_type, worker_id=worker, key=key)
    page = full_page(partial(session.app.admin.find, where), limit=limit, after=after)
    show_page(page, as_json, limit=limit, empty="no tasks")
    return 0


@click.command()
@click.argument("task_id", metavar="ID", type=flags.TASK_ID)
@flags.as_json
@pass_session
def show(session: Session, /, task_id: int, as_json: bool) -> int:
    """A task with its payload, result and failed attempts."""
    show_task(session.app.admin.show(task_id), as_json)
    return 0


@click.command()
@click.argument("task_id", metavar="ID", type=flags.TASK_ID)
@flags.as_json
@pass_session
def why(session: Session, /, task_id: int, as_json: bool) -> int:
    """One sentence: why is this task not running?"""
    sentence = session.app.why(task_id)
    if as_json:
        output.document({"id": task_id, "id_str": str(task_id), "why": sentence})
    else:
        click.echo(printable(sentence))
    return 0


@click.command()
@click.argument("task_id", metavar="ID", type=flags.TASK_ID)
@click.option("--kill", is_flag=True, help="Replace the process of one that runs and does not stop within 5 s.")
@flags.acting
@flags.as_json
@pass_session
def cancel(session: Session, /, task_id: int, kill: bool, because: str | None, who: str | None, as_json: bool) -> int:
    """Cancel a pending task, or ask a running one to stop. Exit code 1 if it has ended otherwise."""
    answer = session.app.cancel(task_id, kill=kill, **flags.acts(because, who))
    done = answer in {"cancelled", "requested"}
    if as_json:
        output.document({"id": task_id, "id_str": str(task_id), "cancel": answer})
    elif done:
        click.echo(f"task {task_id}: {'cancelled' if answer == 'cancelled' else 'running, asked to stop'}")
    if not done:
        raise exits.Failed(f"task {task_id} has ended already: {answer}")
    return 0


@click.command()
@click.option(
    "--watch", "watch_s", type=click.FloatRange(0.1, 86_400.0), is_flag=False, flag_value=2.0, metavar="[S]",
    help="Print it anew every S seconds (2 if left out), until Ctrl-C; with --json one line each time.",
)  # fmt: skip
@flags.as_json
@pass_session
def stats(session: Session, /, watch_s: float | None, as_json: bool) -> int:
    """Open tasks by queue and state; ended ones by outcome."""
    if watch_s is not None:
        with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
            _watch(session, watch_s, as_json)
        return 0
    counts = session.app.stats()
    if as_json:
        output.document(counts)
    else:
        _show_stats(counts)
    return 0


def _watch(session: Session, watch_s: float, as_json: bool) -> NoReturn:
    app = session.app
    while True:
        now = app.clock.now()
        try:
            counts = app.stats()
        except Unavailable as away:  # it may come back: that is what is watched
            output.warn(f"{when(now)}  no answer: {exits.line_of(away)}")
        else:
            if as_json:
                click.echo(json.dumps({"at": rfc3339(now), **counts}, allow_nan=False))
            else:
                click.echo(f"-- {when(now)}")
                _show_stats(counts)
        sys.stdout.flush()
        app.clock.sleep(watch_s)


def _show_stats(counts: Mapping[str, Any]) -> None:
    paused = {pause["name"] for pause in counts["paused"] if pause["kind"] == "queue"}
    rows = [
        _stats_row(queue, states, counts["redis"], queue in paused)
        for queue, states in sorted(counts["queues"].items())
    ]
    output.table(("QUEUE", *[c.upper() for c in _OPEN], "IDS IN REDIS"), rows, empty="no open tasks")
    capped = counts.get("capped", ())
    output.pairs({name: f"{n} (at least)" if name in capped else n for name, n in sorted(counts["ended"].items())})
    for pause in counts["paused"]:
        until = f" until {pause['until']}" if pause["until"] else ""
        click.echo(f"{pause['kind']} {pause['name']} is paused{until}")


def _stats_row(
    queue: str, states: Mapping[str, Any], redis: Mapping[str, Mapping[str, int]] | None, is_paused: bool
) -> list[object]:
    counted = [states.get(state, 0) for state in _OPEN]
    ids = None if redis is None else sum(redis.get(queue, {}).values())
    marks = [word for flag, word in (("capped", "at least"), ("estimated", "about")) if states.get(flag)]
    marks += ["paused"] if is_paused else []
    return [f"{queue} ({', '.join(marks)})" if marks else queue, *counted, "away" if ids is None else ids]


@click.command()
@flags.as_json
@pass_session
def workers(session: Session, /, as_json: bool) -> int:
    """Worker processes that were heard of lately."""
    records = session.app.workers()
    if as_json:
        output.document({"items": [record.to_json() for record in records], "next": None})
        return 0
    headers = ("ID", "STATE", "HOST", "PID", "QUEUES", "PROCESSES", "SLOTS", "BUSY", "OPTIONS", "STARTED", "HEARTBEAT")
    rows = [
        (
            w.id, w.shown_state, w.host, w.pid, w.queues, w.processes, w.slots,
            f"{w.busy}/{w.processes * w.slots}", w.options or None,
            w.started_at, f"{w.heartbeat_age_s:.0f} s ago",
        )
        for w in records
    ]  # fmt: skip
    output.table(headers, rows, empty="no workers")
    return 0
