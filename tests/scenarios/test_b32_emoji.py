"""B32: emoji and CJK everywhere, on servers whose defaults are latin1 or utf8mb3.

Required: payload, result, error, idempotency key and the names of workers come back equal, through Python (on its own
connection and on a caller's, whatever that one's charset) and through the command line; queue names and task types,
which are plain ASCII by contract, are refused at once when they are not. The schema states utf8mb4 for every table, and
every connection of tandemq states it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tandemq import IdempotencyConflict, InvalidTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, assert_settled, sql
from tests.servers import MySQLServer
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_b:app"
DEFAULTS = {
    "latin1": ("--character-set-server=latin1", "--collation-server=latin1_swedish_ci"),
    "utf8mb3": ("--character-set-server=utf8mb3", "--collation-server=utf8mb3_general_ci"),
}
TEXT = "🦀 crab, 👩‍👩‍👧‍👦 family, 漢字かな交じり文, 한국어, Zürich, עברית, 𝔘𝔫𝔦, \u0000, \U0010ffff"
PAYLOAD = {"text": TEXT, "🔑 " + TEXT: [TEXT, {"漢": "字"}]}
CHARSETS = ("utf8mb4", "utf8mb3", "latin1", "ascii")
KEY = "bestellung-🧾-漢字"
NAME = "wörker-🛠-工"
#: Columns that hold names which are ASCII by contract; nothing else may have another charset than utf8mb4.
#: Of tokens and pauses too: made of letters by tandemq itself, or checked names.
ASCII_COLUMNS = {
    "queue", "task_type", "outcome", "ids", "action", "state", "resume", "id", "name", "roles", "hash", "kind",
}  # fmt: skip


@pytest.fixture
def work(
    own_mysql: Callable[..., MySQLServer],
    settings_for: Callable[..., Settings],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    """On a server with these defaults; on the ordinary one for None."""
    server = own_mysql(*DEFAULTS[request.param]) if request.param else request.getfixturevalue("mysql_server")
    settings = settings_for(server.url(server.create_database()), redis_url, **CALM)
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


def assert_nothing_is_left_to_the_defaults(work: Bench) -> None:
    """Tables, columns and connections state their charset."""
    tables = sql(
        work,
        "SELECT table_name, table_collation FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'",
    )
    assert len(tables) > 5
    assert {collation.split("_")[0] for _, collation in tables} == {"utf8mb4"}, tables
    columns = sql(
        work,
        "SELECT c.table_name, c.column_name, c.character_set_name FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND c.character_set_name IS NOT NULL",
    )
    others = {(table, column) for table, column, charset in columns if charset != "utf8mb4"}
    assert {column for _, column in others} <= ASCII_COLUMNS, others
    assert {charset for *_, charset in columns} <= {"utf8mb4", "ascii"}

    def states(connection: object) -> list[str]:
        ask = "SELECT @@character_set_client, @@character_set_connection, @@character_set_results"
        return list(connection.rows(ask)[0])  # type: ignore[attr-defined]

    assert work.app.store.db.read(states) == ["utf8mb4"] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("work", list(DEFAULTS), indirect=True)
def test_everything_comes_back_equal(work: Bench, probe: Probe) -> None:
    echoes = [work.app.enqueue("b.echo", PAYLOAD), work.app.enqueue("b.echo", PAYLOAD, idempotency_key=KEY)]
    for charset in CHARSETS:
        engine = sa.create_engine(work.settings.database_url, connect_args={"charset": charset})
        with engine.begin() as connection:
            key = f"{KEY} {charset}"
            echoes.append(work.app.enqueue("b.echo", PAYLOAD, idempotency_key=key, connection=connection))
        engine.dispose()
    shout = work.app.enqueue("b.shout", {"text": TEXT}, max_retries=0)
    worker = work.worker("-c", "2", "--name", NAME, app=APP).ready()
    ids = [handle.id for handle in echoes]

    assert work.ended([*ids, shout.id]) == {"succeeded": len(ids), "dead": 1}

    for task_id in ids:
        task = work.app.get(task_id)
        assert task is not None
        assert json.loads(task.payload) == json.loads(task.result or "") == PAYLOAD
        assert (task.worker_id or "").startswith(NAME)
    assert echoes[0].result() == PAYLOAD
    dead = work.app.get(shout.id)
    assert dead is not None
    assert dead.last_error == TEXT.replace("\x00", "?")
    assert dead.attempts_log[0].error == dead.last_error
    keys = {work.app.get(i).idempotency_key for i in ids}  # type: ignore[union-attr]
    assert keys == {None, KEY, *(f"{KEY} {charset}" for charset in CHARSETS)}
    again = work.app.enqueue("b.echo", PAYLOAD, idempotency_key=KEY)
    assert (again.id, again.created) == (echoes[1].id, False)
    with pytest.raises(IdempotencyConflict, match=KEY):
        work.app.enqueue("b.echo", {}, idempotency_key=KEY)
    assert [w.name for w in work.app.workers()] == [NAME]
    assert_settled(work, probe, [*ids, shout.id])
    assert NAME in worker.text()
    assert_nothing_is_left_to_the_defaults(work)


@pytest.mark.parametrize("work", size(["utf8mb3"], list(DEFAULTS)), indirect=True)
def test_the_command_line_takes_it_and_shows_it_equal(work: Bench, probe: Probe) -> None:
    bodies = [{"type": "b.echo", "payload": PAYLOAD, "idempotency_key": KEY}]
    bodies.append({"type": "b.shout", "payload": {"text": TEXT}, "max_retries": 0})
    lines = "".join(json.dumps(body, ensure_ascii=False) + "\n" for body in bodies)
    tandemq(work.settings, "enqueue", "--file", "-", stdin=lines)
    shown = json.dumps(PAYLOAD, ensure_ascii=False)
    by_flag = tandemq(work.settings, "enqueue", "b.echo", shown, "--key", KEY + "?", "--json").json["id"]
    assert work.worker("--burst", "--name", NAME, app=APP).wait() == 0

    items = {item["id"]: item for item in tandemq(work.settings, "list", "--json").json["items"]}

    echoes = [item for item in items.values() if item["type"] == "b.echo"]
    assert [item["payload"] == item["result"] == PAYLOAD for item in echoes] == [True, True]
    assert {item["idempotency_key"] for item in echoes} == {KEY, KEY + "?"}
    assert all(item["worker_id"].startswith(NAME) for item in items.values())
    (dead,) = [item for item in items.values() if item["type"] == "b.shout"]
    assert dead["error"] == TEXT.replace("\x00", "?")
    page = tandemq(work.settings, "show", by_flag).out
    assert "🦀 crab" in page
    assert KEY in page
    assert NAME in tandemq(work.settings, "workers").out
    assert_settled(work, probe, items)


@pytest.mark.parametrize("work", [None], indirect=True)
def test_names_that_are_ascii_by_contract_are_refused_at_once(work: Bench) -> None:
    for bad in ("очередь", "queue🦀", "漢字"):
        with pytest.raises(InvalidTask, match=bad):
            work.app.enqueue("b.echo", {}, queue=bad)
        with pytest.raises(InvalidTask, match=bad):
            work.app.enqueue(bad, {})
    assert bad in tandemq(work.settings, "enqueue", "b.echo", "--queue", bad, code=2).err
    assert bad in tandemq(work.settings, "enqueue", bad, code=2).err
    assert sql(work, "SELECT COUNT(*) FROM {t}tasks") == [(0,)]
