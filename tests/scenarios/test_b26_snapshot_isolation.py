"""B26: MariaDB's snapshot isolation, on by default since 11.6.2, changes nothing.

Required with ``innodb_snapshot_isolation=ON``: what the store promises holds (its contract is run), B25 holds,
and error 1020 ("Record has changed since last read") reaches neither a caller nor a log. A server that does not know
the variable (MySQL) has nothing to show here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest
import sqlalchemy as sa

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate
from tests.contract.store_inspecting import InspectingContract
from tests.contract.store_leasing import LeasingContract
from tests.contract.store_producing import ProducingContract
from tests.contract.store_searching import SearchingContract
from tests.contract.store_settling import SettlingContract
from tests.contract.store_transactions import TransactionsContract
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.test_b25_deadlocks import work_through_locks
from tests.scenarios.truth import CALM
from tests.servers import MySQLServer
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200), pytest.mark.servers]


@pytest.fixture(scope="module")
def isolating() -> Iterator[MySQLServer]:
    """A server of this module that tells a transaction when what it changes is newer than what it has read."""
    server = MySQLServer("--loose-innodb-snapshot-isolation=ON")
    server.start()
    found = server.sql("SHOW GLOBAL VARIABLES LIKE 'innodb_snapshot_isolation'")
    if not found:
        server.discard()
        pytest.skip("this server has no innodb_snapshot_isolation")
    assert found[0][1] == "ON"
    yield server
    server.discard()


@pytest.fixture
def isolating_url(isolating: MySQLServer) -> Iterator[str]:
    name = isolating.create_database()
    yield isolating.url(name)
    isolating.drop_database(name)


#: What compares and sets; at full size all of the contract. (Inserting has a test below.)
SUITES = size(
    (LeasingContract, SettlingContract, TransactionsContract),
    (ProducingContract, LeasingContract, SettlingContract, InspectingContract, SearchingContract, TransactionsContract),
)


class TestStore(*SUITES):  # type: ignore[misc]
    @pytest.fixture
    def settings(self, isolating_url: str) -> Settings:
        settings = Settings(database_url=isolating_url, redis_url="redis://nowhere")
        migrate(settings)
        return settings


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], isolating_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(isolating_url, redis_url, **CALM), tmp_path, probe.environ) as made:
        yield made


def test_the_server_does_say_1020(isolating: MySQLServer, isolating_url: str) -> None:
    """Else the rest of this file proves nothing."""
    database = isolating_url.rsplit("/", 1)[1]
    isolating.sql("CREATE TABLE counter (n INT PRIMARY KEY, x INT) ENGINE=InnoDB", database=database)
    isolating.sql("INSERT INTO counter VALUES (1, 0)", database=database)
    one, two = (isolating.connect(database, autocommit=False) for _ in range(2))
    with one.cursor() as first, two.cursor() as second:
        first.execute("SELECT x FROM counter")
        second.execute("UPDATE counter SET x = 1")
        two.commit()
        with pytest.raises(pymysql.err.OperationalError) as refused:
            first.execute("UPDATE counter SET x = x + 1 WHERE n = 1")
    assert refused.value.args[0] == 1020
    one.close()
    two.close()


def test_rows_locked_in_descending_order(work: Bench, probe: Probe, isolating: MySQLServer) -> None:
    work_through_locks(work, probe, isolating)


def test_a_caller_with_an_old_snapshot_enqueues_a_key_that_another_has_taken_since(work: Bench) -> None:
    """On the caller's own connection nothing of the session is changed: it may well be REPEATABLE READ."""
    engine = sa.create_engine(work.settings.database_url, isolation_level="REPEATABLE READ")
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT COUNT(*) FROM tandemq_tasks")).scalar_one()
        first = work.app.enqueue("noop", {}, idempotency_key="order-1")
        again = work.app.enqueue("noop", {}, idempotency_key="order-1", connection=connection)
        other = work.app.enqueue("noop", {}, connection=connection)
        assert (again.id, again.created) == (first.id, False)
    engine.dispose()
    work.burst("-c", "2")
    assert work.statuses([first.id, other.id]) == {"succeeded": 2}
