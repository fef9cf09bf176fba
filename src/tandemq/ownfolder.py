"""A folder of this process's own for the metrics of several, which is gone with it, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "tandemq-metrics-"
#: Locked by whoever uses the folder; nobody holds it any more once that process is gone.
_LOCK: Final = "lock"


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """Until the end of the block; what processes that were killed have left behind is removed first."""
    _sweep()
    folder, fd = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _made() -> tuple[str, int]:
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        path = Path(folder, _LOCK)
        try:
            fd = _locked(path, os.O_CREAT)
        except OSError:  # another's sweep was faster than the lock
            continue
        if path.exists():
            return folder, fd
        os.close(fd)


def _locked(path: Path, flags: int = 0) -> int:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, somebody else's, or just gone
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            fd = _locked(folder / _LOCK)
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
