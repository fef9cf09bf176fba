"""The command ``tandemq``: its verbs, and the way in."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import tandemq
from tandemq.cli import (
    api,
    audit,
    bench,
    dead,
    doctor,
    exits,
    flags,
    health,
    look,
    pausing,
    produce,
    prune,
    queue,
    schema,
    services,
    token,
    top,
)
from tandemq.cli.session import Session
from tandemq.demo.run import run as run_demo


@click.group(
    cls=exits.Root,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 110,
    },
)
@click.option("-A", "--app", "spec", metavar="MODULE:ATTR", envvar="TANDEMQ_APP", help="The application (TANDEMQ_APP).")
@click.version_option(tandemq.__version__, prog_name="tandemq")
@click.pass_context
def tandemq_command(ctx: click.Context, spec: str | None) -> None:
    """A durable task queue: MySQL remembers, Redis runs.

    Servers come from TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL; without them everything lives in ./.tandemq. Every
    flag of a verb has a variable: --slots of worker is TANDEMQ_WORKER_SLOTS.
    """
    ctx.obj = session = Session(spec)
    ctx.call_on_close(session.close)


@click.command()
def demo() -> int:
    """Run some thousand real tasks and check the result against a count without the queue."""
    return run_demo(os.environ)


for verb in (
    schema.migrate,
    produce.enqueue,
    services.worker,
    services.mover,
    services.reconcile,
    api.api,
    look.stats,
    look.list_tasks,
    look.show,
    look.why,
    look.cancel,
    pausing.pause,
    pausing.resume,
    pausing.drain,
    dead.dead,
    audit.audit,
    look.workers,
    top.top,
    prune.prune,
    queue.queue,
    token.token,
    doctor.doctor,
    health.health,
    demo,
    bench.bench,
):
    flags.name_variables(verb, "TANDEMQ")
    tandemq_command.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; see ``exits`` for the codes."""
    sys.exit(exits.run(tandemq_command, arguments))
