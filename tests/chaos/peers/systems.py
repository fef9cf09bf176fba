"""Which queues are compared, and how each is started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import BIN
from tests.servers import MySQLServer

ROOT = Path(__file__).parents[3]
OURS = Path(sys.executable).parent
#: The visibility timeout, heartbeat timeout or lease of all of them.
LEASE_S = 5.0


@dataclass(frozen=True, slots=True)
class System:
    """``worker``: the command line of a group of processes; ``{n}`` and ``{url}`` are filled in. ``groups``: how many.

    ``settings``: what of it is not as it comes. ``drain_s``: how long it may take after the last fault.
    """

    name: str
    bin: Path
    worker: str
    settings: str
    groups: int = 2
    drain_s: float = 130.0

    @property
    def module(self) -> str:
        """Its side."""
        return f"tests.chaos.peers.sides.{self.name}_side"

    def command(self, n: int, redis_url: str) -> list[str]:
        """Of one group."""
        program, *args = self.worker.format(n=n, url=redis_url, module=self.module).split()
        return [str(self.bin / program), *args]

    def environment(self, redis_url: str, ledger: Path, database_url: str) -> dict[str, str]:
        """Of workers and producers."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEMQ_")}
        own = {"PYTHONPATH": f"{ROOT}", "PEERS_REDIS_URL": redis_url, "PEERS_LEDGER": str(ledger)}
        own["PEERS_LEASE_S"] = str(LEASE_S)
        if self.name == "tandemq":
            own |= {"TANDEMQ_REDIS_URL": redis_url, "TANDEMQ_DATABASE_URL": database_url}
            own |= {"TANDEMQ_LEASE_S": str(LEASE_S), "TANDEMQ_HEARTBEAT_S": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return kept | own


SYSTEMS = {
    system.name: system
    for system in (
        System(
            "celery", BIN, "celery -A {module} worker -P prefork -c 2 -l ERROR -n w{n}@%h",
            "acks_late, reject_on_worker_lost, prefetch 1, cancel on connection loss, visibility timeout 5 s",
        ),
        System(
            "dramatiq", BIN, "dramatiq {module} -p 1 -t 2",
            "acknowledges after the run by itself, max_retries 20, heartbeat timeout 5 s, maintenance chance 10 %",
        ),
        System(
            "rq", BIN,
            "rq worker -q -u {url} --worker-ttl 15 --job-monitoring-interval 2 --maintenance-interval 5 peers",
            "Retry(max=20), worker ttl 15 s, job monitoring every 2 s, maintenance every 5 s", groups=4,
        ),
        System("tandemq", OURS, "tandemq -A {module}:app worker -p 1 -c 2", "lease 5 s, heartbeat 1 s"),
    )
}  # fmt: skip


class Databases:
    """MariaDB, for the one that needs it: started when first asked for."""

    def __init__(self) -> None:
        self._server: MySQLServer | None = None

    def create(self) -> str:
        """URL of a new database, migrated."""
        from tandemq.core.settings import Settings
        from tandemq.store.migrate import migrate

        if self._server is None:
            self._server = MySQLServer()
            self._server.start()
        url = self._server.url(self._server.create_database())
        migrate(Settings.load({}, database_url=url, redis_url="redis://127.0.0.1:1/0"))
        return url

    def discard(self) -> None:
        """Stop it."""
        if self._server is not None:
            self._server.discard()
