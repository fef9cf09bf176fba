"""The lists of commands of the model, replayed on a real MariaDB (or MySQL) and a real Redis, and compared.

The servers are as everywhere; only the database does not wait for its disk, which is not what is tested here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tandemq.core.settings import Settings
from tests.model.beds import Bed, embedded
from tests.model.coop import installed
from tests.model.model import walk
from tests.model.mutants import MUTANTS
from tests.model.stage import TIMES
from tests.scenarios.sizes import size
from tests.servers import MySQLServer

pytestmark = pytest.mark.timeout(size(400, 7200))

SEED = 77_000
WALKS, STEPS = size((8, 60), (500, 150))


@pytest.fixture
def beds(
    own_mysql: Callable[..., MySQLServer], redis_url: str, settings_for: Callable[..., Settings]
) -> Iterator[tuple[Bed, Bed]]:
    server = own_mysql("--innodb-flush-log-at-trx-commit=0")
    settings = settings_for(server.url(server.create_database()), redis_url, **TIMES)
    with installed(), embedded() as bed:
        yield Bed(lambda: settings, real=True), bed


def test_the_same_commands_on_real_servers(beds: tuple[Bed, Bed]) -> None:
    real, fast = beds
    print(f"seeds {SEED}..{SEED + WALKS - 1}")
    for seed in range(SEED, SEED + WALKS):
        commands = walk(seed, STEPS)
        on_servers, embedded = real.run(commands), fast.run(commands)
        assert on_servers.outline() == embedded.outline(), f"seed {seed}: the servers differ"


def test_the_lists_that_lead_to_each_mutant_on_real_servers(beds: tuple[Bed, Bed]) -> None:
    """The shortest ways to trouble: a lease that is renewed while it is ended, a claim whose answer is lost, ..."""
    real, fast = beds
    for commands, name in {json.dumps(mutant.commands): mutant.name for mutant in MUTANTS}.items():
        on_servers, embedded = real.run(json.loads(commands)), fast.run(json.loads(commands))
        assert on_servers.outline() == embedded.outline(), name
