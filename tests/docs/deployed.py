"""What the deploy files start, held against the command line and the settings: neither can drift from the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from tandemq.cli.entry import tandemq_command as main
from tandemq.core.settings import Settings


def parsed(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The options of ``tandemq ARGUMENTS`` under these variables; UsageError if the command line would refuse them."""
    verb, *rest = arguments
    command, context = main.commands[verb], click.Context(main)
    with _variables(environ or {}):
        while isinstance(command, click.Group):
            context = click.Context(command, parent=context)
            command, verb, *rest = command.commands[rest[0]], *rest
        return dict(command.make_context(verb, list(rest), parent=context).params)


@contextmanager
def _variables(environ: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def known_variables() -> set[str]:
    """Every variable that tandemq reads: of the settings, and one for each flag of each verb."""
    found = {field.metadata["var"] for field in Settings.__dataclass_fields__.values()}
    todo: list[click.Command] = [main]
    while todo:
        command = todo.pop()
        found |= {flag.envvar for flag in command.params if isinstance(flag.envvar, str)}
        todo += list(command.commands.values()) if isinstance(command, click.Group) else []
    return found
