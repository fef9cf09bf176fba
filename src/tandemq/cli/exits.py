"""Exit codes, and the only place where an error becomes a line on stderr.

0 fine; 1 the thing asked for failed; 2 usage or bad input; 3 a server cannot be reached; 130 interrupted;
141 whoever read our output went away.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from tandemq.core.errors import ConfigurationError, InvalidTask, TandemQError, Unavailable
from tandemq.core.masking import Mask
from tandemq.core.printable import printable

_MASK = Mask()
FAILED, BAD_INPUT, UNREACHABLE, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


class Failed(TandemQError):
    """The thing asked for did not happen; the message says why."""


def code_of(error: TandemQError) -> int:
    """The exit code an error stands for."""
    match error:
        case InvalidTask() | ConfigurationError():
            return BAD_INPUT
        case Unavailable():
            return UNREACHABLE
        case _:
            return FAILED


def line_of(error: BaseException) -> str:
    """The error as one printable line. URLs come masked already; the text of a driver may quote one raw."""
    line = " ".join(str(error).split()) or type(error).__name__
    return printable(_MASK(line))


class ReaderGone(Exception):
    """Whoever read our output closed it. No OSError: click would make its own exit code of one."""


class Root(click.Group):
    """The command ``tandemq``."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as gone:
            raise ReaderGone from gone
        return code


def run(command: click.Command, arguments: Sequence[str] | None) -> int:
    """Run a click command; every way out of it as an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command.main(arguments, prog_name="tandemq", standalone_mode=False)
    except click.ClickException as bad:
        bad.show()
        return BAD_INPUT if isinstance(bad, click.FileError) else bad.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ReaderGone:
        # Whatever is left in the buffer goes nowhere, or the interpreter complains about it while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except TandemQError as error:
        click.echo(f"Error: {line_of(error)}", err=True)
        return code_of(error)
    return code if isinstance(code, int) else 0
