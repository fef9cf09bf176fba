"""An exception as bounded, valid text. Nothing here may raise: recording a failure must never fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from tandemq.core.lifecycle import Failure
from tandemq.core.masking import Mask

MAX_MESSAGE_BYTES = 8 * 1024
MAX_TRACEBACK_BYTES = 32 * 1024
MAX_TYPE_BYTES = 200
CUT_MARK = " …[cut]"
#: Exceptions of one group or chain that are shown; a group of 10,000 would cost seconds and megabytes.
MAX_SHOWN = 20
_PACKAGE = str(Path(__file__).parent.parent)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, cut on a character border and marked; lone surrogates become ``?``."""
    # A NUL is refused by some clients and terminals; replaced by one byte, so that the size stays what it was.
    raw = text[: limit + 1].encode("utf-8", "replace").replace(b"\x00", b"?")
    if len(raw) <= limit and len(text) <= limit:
        return raw.decode("utf-8")
    mark = CUT_MARK.encode()
    return raw[: limit - len(mark)].decode("utf-8", "ignore") + CUT_MARK


def _safely(make: Callable[[], object], placeholder: str) -> str:
    try:
        text = make()
    except BaseException:  # the exception's own code runs here, and may raise anything at all
        return placeholder
    # str.__str__ makes plain text of a subclass, whose slicing and encoding could raise later.
    return str.__str__(text) if isinstance(text, str) else placeholder


def _message(exc: BaseException, mask: Mask) -> str:
    # Before anything is cut: half a secret would not be found.
    return mask.known(_safely(lambda: str(exc), "<message could not be printed>"))


def _users_frames(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Without our own frames above the handler's; all of them where there is nothing else."""
    first = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(_PACKAGE)), 0)
    return frames[first:]


def _trace(exc: BaseException, mask: Mask) -> str:
    frames = _users_frames(traceback.extract_tb(exc.__traceback__, limit=-40))
    # Not format_list: the carets that it draws cost an ast.parse for every frame.
    lines = [f'  File "{f.filename}", line {f.lineno}, in {f.name}\n    {f.line or ""}\n' for f in frames]
    seen, cause = {id(exc)}, exc.__cause__ or exc.__context__
    while cause is not None and id(cause) not in seen and len(seen) < MAX_SHOWN:
        seen.add(id(cause))
        lines.append(f"caused by {type(cause).__name__}: {clip(_message(cause, mask), 500)}\n")
        cause = cause.__cause__ or cause.__context__
    if isinstance(exc, BaseExceptionGroup):
        lines += [f"- {type(e).__name__}: {clip(_message(e, mask), 200)}\n" for e in exc.exceptions[:MAX_SHOWN]]
        if len(exc.exceptions) > MAX_SHOWN:
            lines.append(f"- and {len(exc.exceptions) - MAX_SHOWN} more\n")
    lines += [f"note: {clip(mask.known(note), 500)}\n" for note in _notes(exc)]
    return mask.known("".join(lines))


def _notes(exc: BaseException) -> list[str]:
    notes = getattr(exc, "__notes__", ())
    return [n for n in notes[:MAX_SHOWN] if isinstance(n, str)] if isinstance(notes, list | tuple) else []


_NO_SECRETS = Mask()


def describe(exc: BaseException, mask: Mask = _NO_SECRETS) -> Failure:
    """Type, message and traceback of any exception, however hostile its ``__str__``; never raises.

    Without the secrets that ``mask`` knows: what is stored is shown to everybody who may look at tasks.
    """
    name = _safely(lambda: type(exc).__name__, "Exception")
    message = _message(exc, mask) or f"<{name} without a message>"
    return Failure(
        error_type=clip(name, MAX_TYPE_BYTES),
        message=clip(message, MAX_MESSAGE_BYTES),
        traceback=clip(_safely(lambda: _trace(exc, mask), "<traceback could not be printed>"), MAX_TRACEBACK_BYTES),
    )


def failure(error_type: str, message: str) -> Failure:
    """A failure that no exception stands behind."""
    return Failure(clip(error_type, MAX_TYPE_BYTES), clip(message, MAX_MESSAGE_BYTES))
