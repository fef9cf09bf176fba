"""Reads and runs the fenced blocks of a page, in order, in one folder: what a reader would type.

- ``python``: the first line ``# name.py`` names the file it is written to.
- ``console``: each ``$ line`` is run by a shell; ``line &`` runs on in the background until the page is done. Lines
  below it must come out in this order, ``...`` standing for anything. Ports 8000 and 9100 are free ones in their stead.
- ``sql``: run in the page's database. Needs ``<!-- servers -->`` in the page, which gives it MySQL and Redis;
  without it the page runs on the embedded default.
- anything else, and blocks whose info string says ``no-run``, is for reading.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ROOT, free_port
from tests.waiting import eventually

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_S = 90.0


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that is run: its language, text, and line in the page."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """All pages that hold something to run."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")]
    return sorted(p for p in found if blocks(p))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, info, body = match.groups()
        if language in {"python", "console", "sql"} and "no-run" not in info:
            found.append(Block(language, body, text[: match.start()].count("\n") + 1))
    return found


def needs_servers(page: Path) -> bool:
    """Whether the page asks for real servers."""
    return "<!-- servers -->" in page.read_text()


@dataclass(frozen=True, slots=True)
class Said:
    """A command of a console block and the output that the page promises."""

    command: str
    expected: str


def commands(block: Block) -> list[Said]:
    """The commands of a console block."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"line {block.line}: a console block begins with '$ '"
    split = (part.partition("\n") for part in parts[1:])
    return [Said(command, expected.strip()) for command, _, expected in split]


def pattern(expected: str) -> str:
    """A regular expression for the promised lines; others may be around them, and columns may be wider."""
    return ".*".join(_piece(piece) for piece in expected.split("..."))


def _piece(text: str) -> str:
    lines = (" +".join(re.escape(word) for word in line.split()) for line in text.strip().splitlines())
    return r" *\n *".join(lines)


class Reader:
    """Someone who types what the page says, in ``folder``."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEMQ_", "COLUMNS", "FORCE_COLOR"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
        self.port = free_port()
        own = {"PATH": path, "PYTHONUNBUFFERED": "1", "TANDEMQ_API_PORT": str(self.port)}
        self.environ = kept | own | {"TANDEMQ_API_URL": f"http://127.0.0.1:{self.port}"} | environ
        self.metrics_port = free_port()
        self._background: list[subprocess.Popen[bytes]] = []

    def write(self, block: Block) -> None:
        """Save a python block under the name in its first line."""
        named = re.match(r"# (\S+\.py)\n", block.text)
        assert named, f"line {block.line}: the first line of a python block is '# name.py'"
        path = self.folder / named.group(1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def type(self, said: Said) -> None:
        """Run one command; AssertionError when it fails or says something else."""
        command = said.command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        said = Said(command.replace("9100", str(self.metrics_port)), said.expected)
        if said.command.startswith("export "):
            name, _, value = said.command.removeprefix("export ").partition("=")
            self.environ[name] = value
            return
        if said.command.startswith("cd "):
            self.folder /= said.command.removeprefix("cd ")
            return
        if said.command.endswith(" &"):
            self._start(said.command.removesuffix(" &"))
            return
        done = subprocess.run(
            ["bash", "-ec", said.command],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        told = f"$ {said.command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"exit code {done.returncode}\n{told}"
        found = re.search(pattern(said.expected), done.stdout + done.stderr, re.DOTALL)
        assert found, f"the page promises\n{said.expected}\nbut\n{told}"

    def _start(self, command: str) -> None:
        path = self.folder / "background.log"
        with path.open("ab") as log:
            self._background.append(
                subprocess.Popen(
                    ["bash", "-ec", f"exec {command}"],
                    cwd=self.folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        if command.endswith(
            " worker"
        ):  # a reader looks before going on; what is typed next may wait only so long for it
            eventually(self._a_worker_is_there, 60, path.read_text, every_s=0.5)
        if command.endswith(" api"):
            eventually(self._the_api_is_there, 60, path.read_text, every_s=0.1)

    def _a_worker_is_there(self) -> bool:
        command = ["tandemq", "workers", "--json"]
        done = subprocess.run(command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=True)
        return any(worker["alive"] for worker in json.loads(done.stdout)["items"])

    def _the_api_is_there(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def leave(self) -> list[int]:
        """End what runs in the background, as a service manager would; the exit codes."""
        codes = []
        for process in reversed(self._background):  # a worker before the API that it asks
            process.send_signal(signal.SIGTERM)
            try:
                codes.append(process.wait(COMMAND_S))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return codes
