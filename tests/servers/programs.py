"""Where the server programs are: on PATH, in the sbin folders, or unpacked under ``.cache/servers/root``."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "servers"
UNPACKED = CACHE / "root"
INSTALL = (
    "apt-get install -y --no-remove redis-server mariadb-server"
    " (or sh dev/provide_servers.sh without root,"
    " or set TANDEMQ_TEST_DATABASE_URL=mysql+pymysql://... and TANDEMQ_TEST_REDIS_URL=redis://...)"
)


class MissingServer(RuntimeError):
    """A server program is not on this machine; the message names the command to install it."""


def find(*names: str) -> Path | None:
    """The first of these programs on PATH, in the sbin folders, or unpacked."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]
    if os.environ.get("TANDEMQ_TEST_UNPACKED_ONLY"):
        folders = []
    folders += [str(UNPACKED / f) for f in ("usr/sbin", "usr/bin")]
    for folder, name in itertools.product(folders, names):
        if folder and os.access(path := Path(folder, name), os.X_OK) and path.is_file():
            return path.absolute()
    return None


def need(*names: str) -> Path:
    """As ``find``, or MissingServer."""
    if (found := find(*names)) is None:
        raise MissingServer(f"no {names[0]} here: {INSTALL}")
    return found


def missing() -> str:
    """One line naming what is missing and how to get it; empty when both servers can be had."""
    lacking = []
    if not os.environ.get("TANDEMQ_TEST_DATABASE_URL") and find("mariadbd", "mysqld") is None:
        lacking.append("mariadbd")
    if not os.environ.get("TANDEMQ_TEST_REDIS_URL") and find("redis-server") is None:
        lacking.append("redis-server")
    return f"no {' and no '.join(lacking)} here: {INSTALL}" if lacking else ""


def environment(program: Path) -> dict[str, str]:
    """The environment to start it in: nothing of tandemq, and its libraries where it is unpacked."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")}
    if program.is_relative_to(UNPACKED):
        folders = [*UNPACKED.glob("usr/lib/*-linux-gnu"), *UNPACKED.glob("lib/*-linux-gnu")]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(str(f) for f in folders)
        env["PATH"] = os.pathsep.join([str(UNPACKED / "usr/bin"), str(UNPACKED / "usr/sbin"), env.get("PATH", "")])
    return env
