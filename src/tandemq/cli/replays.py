"""``tandemq dead replay`` and ``tandemq dead replays``: dead letters sent on their way again, with a fuse."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from tandemq.acting import os_user
from tandemq.cli import exits, flags, output
from tandemq.cli.narrowing import filter_of, narrowing, target
from tandemq.cli.session import Session, pass_session
from tandemq.core.clock import Clock
from tandemq.replaying import Replayed, parse_canary, parse_edit, parse_rate, parse_share, run_json
from tandemq.store.runs import ReplayRun, RunState

SAY_EVERY_S = 0.5
RATE = flags.Checked("rate", parse_rate)
CANARY = flags.Checked("share|count", parse_canary)
SHARE = flags.Checked("share", lambda text: parse_share(text, "stop_if_failing"))
EDIT = flags.Checked("json", parse_edit)
RUN_ID = click.argument("run_id", metavar="ID", type=flags.TASK_ID)
DETACH = click.option("--detach", is_flag=True, help="Do not wait: the reconciler of a worker carries it out.")


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=flags.TASK_ID)
@partial(narrowing, acts=True)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are, by type and error.")
@click.option("--rate", type=RATE, help="No faster than this: 50/s, 10/min.")
@click.option("--limit", type=click.IntRange(min=1), help="The newest so many.")
@click.option("--edit", type=EDIT, help='JSON merge patch on each payload: {"city": "Bern", "old": null}.')
@click.option("--to-queue", type=flags.QUEUE, help="Into this queue instead of their own.")
@click.option("--to-priority", type=flags.PRIORITY, help="With this priority instead of their own.")
@click.option("--canary", type=CANARY, help="Replay a sample first and wait for its ends: 1%, or a count.")
@click.option("--stop-if-failing", type=SHARE, help="Pause if more than this share dies again; 20% with --canary.")
@click.option("--canary-wait", type=flags.AGE, help="How long the canary's ends are waited for; default 10m.")
@click.option("--continue", "again", is_flag=True, help="Go on with the run that the same command has begun, if any.")
@DETACH
@flags.acting
@flags.as_json
@pass_session
def replay(
    session: Session, /, ids: tuple[int, ...], everything: bool, as_json: bool, again: bool, **given: Any
) -> int:
    """Make dead letters pending again: those with the IDs, those that the flags narrow down to, or --all.

    Each goes once, however many do this at the same time. Anything but a few IDs is a run, which can be paused, and
    goes on after a kill: see "tandemq dead replays". Interrupted with Ctrl-C, it is paused.
    """
    options = {name: given.pop(name) for name in _OPTIONS}
    options |= {"queue": given.pop("to_queue"), "priority": given.pop("to_priority")}
    said = flags.acts(given.pop("because"), given.pop("who"))
    options |= said
    where = target(ids, filter_of(session, given), everything)
    dead = session.app.dead
    if again and not options["dry_run"] and (found := dead.replays.same(ids or None, where=where, **options)):
        return _go_on(session, found.id, as_json, options["detach"], said)
    with _Following(session, as_json) as line:
        answer = dead.replay(ids or None, where=where, on_progress=line.show, **options)
    if options["dry_run"]:
        return _told_of_dry_run(answer, as_json)
    return _told(answer, as_json, detached=options["detach"], all_wanted=bool(ids))


_OPTIONS = (*("dry_run", "rate", "limit", "edit", "canary", "stop_if_failing", "canary_wait", "detach"),)


@click.group(invoke_without_command=True)
@flags.as_json
@click.pass_context
def replays(ctx: click.Context, as_json: bool) -> int | None:
    """Replay runs: list (also without a verb), show, pause, continue, cancel."""
    return ctx.invoke(list_runs, as_json=as_json) if ctx.invoked_subcommand is None else None


@replays.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="Runs on a page.")
@click.option("--after", "below", type=flags.TASK_ID, help="Next page: the id that the last one named.")
@click.option("--open", "is_open", is_flag=True, help="Only those that are not over.")
@flags.as_json
@pass_session
def list_runs(session: Session, /, limit: int = 50, below: int | None = None, is_open: bool = False,
              as_json: bool = False) -> int:  # fmt: skip
    """Runs, newest first."""
    found = session.app.dead.replays.list(limit=limit + 1, below=below, is_open=is_open)
    runs, following = found[:limit], found[limit - 1].id if len(found) > limit else None
    if as_json:
        output.document({"items": [run_json(run) for run in runs], "next": following})
        return 0
    rows = [
        (r.id, r.state, r.selected, r.moved, r.skipped, r.failed, r.created_by, r.created_at, r.note or r.reason)
        for r in runs
    ]
    headers = ("ID", "STATE", "TASKS", "MOVED", "SKIPPED", "FAILED", "BY", "BEGUN", "NOTE")
    output.table(headers, rows, empty="no replay runs")
    if following is not None:
        click.echo(f"more: --after {following}")
    return 0


@replays.command()
@RUN_ID
@flags.as_json
@pass_session
def show(session: Session, /, run_id: int, as_json: bool) -> int:
    """One run: what it was told, how far it has come, and why tasks were not moved."""
    service = session.app.dead.replays
    run = service.show(run_id)
    reasons = service.result(run).to_json()["reasons"]
    failed = [item._asdict() for item in service.items(run_id, "failed", limit=20)]
    if as_json:
        output.document(run_json(run) | {"reasons": reasons, "failed_items": failed})
        return 0
    output.pairs({name: _plain(value) for name, value in run_json(run).items()})
    for one in reasons:
        click.echo(f"{one['n']} {one['outcome']}: {output.cell(one['why'], 500)}")
    for item in failed:
        click.echo(f"task {item['task_id']} failed: {output.cell(item['note'], 500)}")
    return 0


@replays.command()
@RUN_ID
@flags.acting
@flags.as_json
@pass_session
def pause(session: Session, /, run_id: int, as_json: bool, because: str | None, who: str | None) -> int:
    """Stop a run where it is; it can go on later."""
    return _changed(session.app.dead.replays.pause(run_id, **flags.acts(because, who)), as_json)


@replays.command()
@RUN_ID
@flags.acting
@flags.as_json
@pass_session
def cancel(session: Session, /, run_id: int, as_json: bool, because: str | None, who: str | None) -> int:
    """End a run for good; what it has moved stays moved."""
    return _changed(session.app.dead.replays.cancel(run_id, **flags.acts(because, who)), as_json)


@replays.command("continue")
@RUN_ID
@DETACH
@flags.acting
@flags.as_json
@pass_session
def go_on(session: Session, /, run_id: int, detach: bool, because: str | None, who: str | None, as_json: bool) -> int:
    """Go on with a run that is paused, or whose process has died, and follow it to its end."""
    return _go_on(session, run_id, as_json, detach, flags.acts(because, who))


def _go_on(session: Session, run_id: int, as_json: bool, detach: bool, said: dict[str, str]) -> int:
    service = session.app.dead.replays
    run = service.resume(run_id, **said)
    if detach:
        return _told(service.result(run), as_json, detached=True)
    with _Following(session, as_json) as line:
        answer = service.follow(run_id, on_progress=line.show, take_over=True)
    return _told(answer, as_json)


class _Following:
    """The progress line on a terminal, one line at the start elsewhere, both on stderr; Ctrl-C pauses the run."""

    def __init__(self, session: Session, quiet: bool) -> None:
        self._session, self._quiet = session, quiet
        self._clock: Clock = session.app.clock
        self._run: ReplayRun | None = None
        self._begun: tuple[float, int] = (0.0, 0)
        self._said_at = float("-inf")

    def __enter__(self) -> _Following:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._run is not None and not self._quiet and sys.stderr.isatty():
            click.echo("\r\033[K", nl=False, err=True)
        if isinstance(error, KeyboardInterrupt) and self._run is not None:
            self._session.app.dead.replays.pause(self._run.id, reason="interrupted", who=os_user())
            output.warn(f"run {self._run.id} is paused; to go on: tandemq dead replays continue {self._run.id}")

    def show(self, run: ReplayRun) -> None:
        """Called after each step."""
        now = self._clock.monotonic()
        if self._run is None:
            self._begun = (now, run.moved)
            output.warn(f"replay run {run.id}; to go on after a kill: tandemq dead replays continue {run.id}")
        self._run = run
        if self._quiet or not sys.stderr.isatty() or now - self._said_at < SAY_EVERY_S:
            return
        self._said_at = now
        passed = max(now - self._begun[0], SAY_EVERY_S)
        speed = f"{(run.moved - self._begun[1]) / passed:,.0f}/s"
        counts = f"{run.moved:,} of {run.selected:,} moved, {run.skipped:,} skipped, {run.failed:,} failed"
        click.echo(f"\r\033[Krun {run.id} {run.state}: {counts}, {speed}", nl=False, err=True)


def _told(answer: Replayed, as_json: bool, *, detached: bool = False, all_wanted: bool = False) -> int:
    if as_json:
        output.document(answer.to_json())
    else:
        name = "" if answer.run_id is None else f"run {answer.run_id} {answer.state}: "
        left = f", {answer.left} left" if answer.left else ""
        click.echo(f"{name}{answer.moved} replayed, {answer.skipped} skipped, {answer.failed} failed{left}")
        for (outcome, why), n in answer.reasons.items():
            click.echo(f"  {n} {outcome}: {output.cell(why, 500)}")
        if answer.note:
            click.echo(f"  {output.cell(answer.note, 500)}")
        if answer.state is RunState.PAUSED:
            click.echo(f"  to go on: tandemq dead replays continue {answer.run_id}")
    missed = answer.failed or (all_wanted and answer.skipped)
    return exits.FAILED if missed or not (detached or answer.state is RunState.DONE) else 0


def _told_of_dry_run(answer: Replayed, as_json: bool) -> int:
    if as_json:
        output.document({"found": answer.left, "kinds": [kind._asdict() for kind in answer.kinds]})
        return 0
    output.table(("TASKS", "TYPE", "ERROR"), [(k.n, k.task_type, k.error_type or None) for k in answer.kinds], empty="")
    click.echo(f"{answer.left} would be replayed")
    return 0


def _changed(run: ReplayRun, as_json: bool) -> int:
    if as_json:
        output.document(run_json(run))
    else:
        click.echo(f"run {run.id} is {run.state}: {run.moved} replayed, {run.left} left")
    return 0


def _plain(value: object) -> object:
    return " ".join(f"{k}={v}" for k, v in value.items()) or None if isinstance(value, dict) else value
