"""A real terminal for programs that need one: a private tmux, whose screen is read as people would see it."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from tests.servers import programs
from tests.waiting import eventually
from tests.workers import ROOT

INSTALL = "apt-get install -y --no-remove tmux (or sh dev/provide_servers.sh without root)"
_numbers = itertools.count(1)


class Terminal:
    """``command`` in a terminal of so many columns and lines; ``discard`` when done."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 110, lines: int = 24) -> None:
        program = programs.find("tmux")
        assert program is not None, f"no tmux here: {INSTALL}"
        self._tmux = [str(program), "-u", "-L", f"tandemq-{os.getpid()}-{next(_numbers)}", "-f", "/dev/null"]
        self._env = programs.environment(program) | {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        changed = [f"{name}={value}" for name, value in env.items() if os.environ.get(name) != value]
        # The shell stays, also after Ctrl-C, so that the last screen can be read, and how the program ended.
        line = f"trap : INT; env {shlex.join([*changed, *command])}; echo ended with $?; exec sleep 600"
        size = ["-x", str(columns), "-y", str(lines)]
        self._run("new-session", "-d", "-s", "it", *size, "-c", str(ROOT), "sh", "-c", line)

    def keys(self, *names: str) -> None:
        """Type; names as tmux has them: ``q``, ``Down``, ``C-c``."""
        self._run("send-keys", "-t", "it", *names)

    def text(self, *, colours: bool = False) -> str:
        """The screen."""
        return self._run("capture-pane", "-p", "-J", "-t", "it", *(["-e"] if colours else []))

    def shows(self, *texts: str, timeout_s: float = 60.0) -> str:
        """Wait until all of these are on the screen; the screen."""
        eventually(lambda: all(text in self.text() for text in texts), timeout_s, self.text, every_s=0.1)
        return self.text()

    def resize(self, columns: int, lines: int) -> None:
        self._run("resize-window", "-t", "it", "-x", str(columns), "-y", str(lines))
        tty = self._run("display-message", "-p", "-t", "it", "#{pane_tty}").strip()
        eventually(lambda: _size(tty) == (columns, lines), 60.0, lambda: f"tmux left {tty} at {_size(tty)}")

    def discard(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], env=self._env, check=False, capture_output=True)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([*self._tmux, *arguments], env=self._env, check=False, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


def _size(tty: str) -> tuple[int, int]:
    fd = os.open(tty, os.O_RDONLY | os.O_NOCTTY)
    try:
        return tuple(os.get_terminal_size(fd))  # type: ignore[return-value]
    finally:
        os.close(fd)
