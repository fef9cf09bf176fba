"""B30: payloads and results near the size limits.

Required: what is accepted comes back byte for byte. What is too big for the configured limit, or for the server's
``max_allowed_packet``, is refused before any row or Redis id exists, with the size and the limit named, and the next
call on the same client works. A result that is too big ends its task all the same: succeeded, with a note, begun once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tandemq import Filter, NewTask, PayloadTooLarge
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, assert_settled, redis_ids, row_count
from tests.servers import MySQLServer
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_b:app"
MIB = 1024 * 1024
RAISED = 16_000_000
RAISED_FOR_RESULTS = 15 * MIB
FEW = [NewTask("b.noop", {})] * 3
SIZES = size((65_535, 65_536, MIB, 15 * MIB), (254, 255, 256, 65_535, 65_536, MIB, 2 * MIB, 8 * MIB, 15 * MIB))


@pytest.fixture
def work(
    own_mysql: Callable[..., MySQLServer],
    settings_for: Callable[..., Settings],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    """On a server with this ``max_allowed_packet`` in MiB; both limits of tandemq are raised."""
    server = own_mysql(f"--max-allowed-packet={request.param}M")
    limits = {"max_payload_bytes": RAISED, "max_result_bytes": RAISED_FOR_RESULTS}
    settings = settings_for(server.url(server.create_database()), redis_url, **limits, **CALM)
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


def payload_of(size: int, char: str = "x") -> dict[str, str]:
    """A payload whose JSON has this many bytes."""
    room = size - len('{"text":""}')
    each = len(json.dumps(char, ensure_ascii=False).encode()) - 2
    payload = {"text": char * (room // each) + "x" * (room % each)}
    assert len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()) == size
    return payload


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("work", [16], indirect=True)
def test_payloads_of_every_size_come_back_byte_for_byte(work: Bench, probe: Probe) -> None:
    wanted = {}
    for char in ("x", "é", "🦀"):
        for wide in SIZES if char == "x" else SIZES[1:3]:
            payload = payload_of(wide, char)
            wanted[work.app.enqueue("b.digest", payload).id] = sha(payload["text"])
    odd = payload_of(MIB, "\\")
    wanted[work.app.enqueue("b.digest", odd).id] = sha(odd["text"])
    path = work.folder / "big.ndjson"
    big = [payload_of(wide) for wide in (65_536, size(MIB, 15 * MIB))]
    path.write_text("".join(json.dumps({"type": "b.digest", "payload": p}) + "\n" for p in big))
    before = set(wanted)

    tandemq(work.settings, "enqueue", "--file", path)

    ids = [t.id for t in work.app.admin.find(Filter(task_type="b.digest"), limit=2).items]
    wanted |= dict(zip(sorted(ids), [sha(p["text"]) for p in big], strict=True))
    assert not before & set(ids)
    work.worker("-c", "2", app=APP).ready()
    assert work.ended(list(wanted)) == {"succeeded": len(wanted)}
    assert {i: json.loads(work.app.store.ending(i)[1] or "") for i in wanted} == wanted
    for task_id in wanted:
        task = work.app.get(task_id)
        assert task is not None
        assert sha(json.loads(task.payload)["text"]) == wanted[task_id]
    probe.assert_once(wanted)
    assert_settled(work, probe, wanted)


@pytest.mark.parametrize("work", [16], indirect=True)
def test_too_big_payloads_are_refused_before_anything_exists_and_the_next_call_works(work: Bench, probe: Probe) -> None:
    kept = work.ids("b.noop", 1)
    over = payload_of(17 * MIB)
    quotes = payload_of(9 * MIB, '"')  # fits the limit, but not the packet: SQL escapes what JSON has escaped
    engine = sa.create_engine(work.settings.database_url)

    def on_own_connection() -> None:
        with engine.begin() as connection:
            work.app.enqueue("b.digest", quotes, connection=connection)

    def among_others_on_own_connection() -> None:
        with engine.connect() as connection:
            try:
                work.app.enqueue_many([*FEW, NewTask("b.digest", quotes)], connection=connection)
            finally:
                connection.commit()  # a caller who catches the error and goes on

    crabs = payload_of(6 * MIB, "🦀")  # on a foreign connection everything travels as ASCII: 12 bytes a crab

    def crabs_on_own_connection() -> None:
        with engine.begin() as connection:
            work.app.enqueue("b.digest", crabs, connection=connection)

    attempts = {
        "over the limit": (lambda: work.app.enqueue("b.digest", over), "16000000", str(17 * MIB)),
        "over the packet": (lambda: work.app.enqueue("b.digest", quotes), "16777216", ""),
        "with a key": (lambda: work.app.enqueue("b.digest", quotes, idempotency_key="k"), "16777216", ""),
        "among others": (lambda: work.app.enqueue_many([*FEW, NewTask("b.digest", quotes)]), "16777216", ""),
        "on my connection": (on_own_connection, "16777216", ""),
        "among others on my connection": (among_others_on_own_connection, "16777216", ""),
        "wide on my connection": (crabs_on_own_connection, "16777216", ""),
    }
    for name, (attempt, limit, said_size) in attempts.items():
        with pytest.raises(PayloadTooLarge) as refused:
            attempt()
        assert limit in str(refused.value), name
        assert said_size in str(refused.value), name
        assert refused.value.field == "payload", name
        assert row_count(work) == len(kept), name
        assert redis_ids(work) == sorted(kept), name
        kept += work.ids("b.noop", 1)  # the same client goes on
        with engine.begin() as connection:
            kept.append(work.app.enqueue("b.noop", {}, connection=connection).id)
        work.app.producer.close()
    line = json.dumps({"type": "b.digest", "payload": over})
    answer = tandemq(work.settings, "enqueue", "--file", "-", stdin=line, code=2)
    assert "16000000" in answer.err
    assert row_count(work) == len(kept)
    engine.dispose()
    assert work.worker("--burst", app=APP).wait() == 0
    probe.assert_once(kept)
    assert_settled(work, probe, kept)


def assert_results(work: Bench, probe: Probe, results: list[tuple[str, int, bool]]) -> None:
    """Results of so many characters, and whether they can be kept, beside small tasks on the same worker."""
    given = {
        work.app.enqueue("b.blob", {"char": char, "times": times}).id: (char, times, fits)
        for char, times, fits in results
    }
    ids = [*given, *work.ids("b.noop", 20)]
    assert work.ended(ids) == {"succeeded": len(ids)}
    for task_id, (char, times, fits) in given.items():
        task = work.app.get(task_id)
        assert task is not None
        assert task.attempts == 1, (char, times)
        if fits:
            assert sha(task.result or "") == sha(f'"{char * times}"'), (char, times)
            assert task.last_error is None
            continue
        assert (task.result, task.error_type) == (None, "ResultNotStorable"), (char, times)
        assert task.last_error, (char, times)
        assert work.app.store.ending(task_id)[1] is None
        size = len(char.encode()) * times + 2
        if size > RAISED_FOR_RESULTS:
            assert f"{size} bytes, the limit is {RAISED_FOR_RESULTS}" in task.last_error
    starts = probe.starts()
    assert {task_id: starts[task_id] for task_id in ids} == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("work", [16], indirect=True)
def test_results_come_back_byte_for_byte_or_end_with_a_note_after_one_run(work: Bench, probe: Probe) -> None:
    work.worker("-c", "4", app=APP).ready()
    kept = [("x", 65_533), ("x", 65_534), ("x", MIB), ("x", 15 * MIB - 2), ("🦀", 3 * MIB)]
    left_out = [("x", 15 * MIB - 1), ("🦀", 4 * MIB), ("x", 17 * MIB)]
    left_out += [('"', 6 * MIB)]  # 12 MiB of JSON, 24 MiB of SQL
    results = [(char, times, True) for char, times in kept] + [(char, times, False) for char, times in left_out]
    assert_results(work, probe, results)
    assert_settled(work, probe, [])


@pytest.mark.parametrize("work", [1], indirect=True)
def test_a_server_with_small_packets_refuses_by_name_and_takes_what_fits(work: Bench, probe: Probe) -> None:
    engine = sa.create_engine(work.settings.database_url)

    def on_own_connection() -> None:
        with engine.begin() as connection:
            work.app.enqueue("b.digest", payload_of(2 * MIB), connection=connection)

    for attempt in (
        lambda: work.app.enqueue("b.digest", payload_of(2 * MIB)),
        lambda: work.app.enqueue("b.digest", payload_of(2 * MIB), idempotency_key="k"),
        on_own_connection,
    ):
        with pytest.raises(PayloadTooLarge, match=str(MIB)):
            attempt()
    assert row_count(work) == 0
    assert redis_ids(work) == []
    fitting = payload_of(MIB - 10_000)
    handles = [work.app.enqueue("b.digest", fitting) for _ in range(5)]
    handles += work.app.enqueue_many([NewTask("b.digest", payload_of(MIB // 3)) for _ in range(10)])
    with engine.begin() as connection:
        handles.append(work.app.enqueue("b.digest", fitting, connection=connection))
    engine.dispose()
    work.worker("-c", "4", app=APP).ready()
    ids = [handle.id for handle in handles]
    assert work.ended(ids) == {"succeeded": len(ids)}
    assert handles[0].result() == handles[-1].result() == sha(fitting["text"])
    probe.assert_once(ids)
    left_out = [("x", 2 * MIB, False), ('"', MIB // 3, False)]
    assert_results(work, probe, [("x", 65_534, True), ("x", MIB - 10_000, True), *left_out])
    assert_settled(work, probe, ids)
