"""Sending commands: one, or several in one round trip (no MULTI: no entry depends on its neighbour)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis

Command = Sequence[str | int | float]


def ask(client: redis.Redis, *command: str | int | float | bytes) -> Any:
    """The answer of one command."""
    execute: Callable[..., Any] = client.execute_command
    return execute(*command)


def ask_all(client: redis.Redis, commands: Iterable[Command]) -> list[Any]:
    """The answer of each command; the first error is raised, after all commands have run."""
    commands = list(commands)
    if len(commands) == 1:
        return [ask(client, *commands[0])]
    pipe = client.pipeline(transaction=False)
    queue: Callable[..., Any] = pipe.execute_command
    for command in commands:
        queue(*command)
    answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return list(answers)
