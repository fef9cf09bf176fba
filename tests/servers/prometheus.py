"""A private Prometheus that scrapes the pages it is told of, and promtool; see dev/provide_prometheus.sh."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers.process import Server
from tests.servers.programs import MissingServer, environment, find

INSTALL = "sh dev/provide_prometheus.sh (or put prometheus and promtool on PATH)"


def program(name: str) -> Path:
    """Where it is, or MissingServer: never a skip."""
    if (found := find(name)) is None:
        raise MissingServer(f"no {name} here: {INSTALL}")
    return found


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What it says of the files of a folder."""
    tool = program("promtool")
    return subprocess.run(
        [tool, *arguments], cwd=folder, env=environment(tool), capture_output=True, text=True, timeout=60, check=False
    )


class Prometheus(Server):
    """Scrapes ``targets`` (host:port) every second and judges ``rules`` (files) as often."""

    def __init__(self, targets: Sequence[str], rules: Sequence[Path] = ()) -> None:
        super().__init__("prom")
        self.program = program("prometheus")
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "tandemq", "static_configs": [{"targets": list(targets)}]}],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML too

    def command(self) -> list[str]:
        """See ``Server``."""
        return [
            str(self.program), f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip

    def ping(self) -> bool:
        """See ``Server``."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an expression now."""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]
