"""The SQL text: guards come from the table of moves, values are bound, one dialect does not leak into the other."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tandemq.core.lifecycle import ENDED, FINAL, MOVES, Event, Move, Status
from tandemq.store.dialects import MYSQL, SQLITE, Dialect
from tandemq.store.queries import Queries
from tandemq.store.statements import Statements, sources, target

IDS = [3, 5]
ONE_TOKEN = [(3, 70), (5, 70)]
TWO_TOKENS = [(3, 70), (5, 71)]

MOVING: dict[Event, Callable[[Statements], str]] = {
    Event.CLAIM: lambda s: s.claim(IDS),
    Event.SUCCEED: lambda s: s.succeed(ONE_TOKEN, [3], [5]),
    Event.RETRY: lambda s: s.retry(ONE_TOKEN),
    Event.RELEASE: lambda s: s.release(ONE_TOKEN),
    Event.BURY: lambda s: s.bury(ONE_TOKEN),
    Event.CANCEL_RUNNING: lambda s: s.cancel_running(ONE_TOKEN),
    Event.CANCEL: lambda s: s.cancel(),
    Event.DISCARD: lambda s: s.discard(IDS),
    Event.REPLAY: lambda s: s.replay(IDS),
}
AFTER_A_CLAIM: list[Callable[[Statements, list[tuple[int, int]]], str]] = [
    lambda s, pairs: s.succeed(pairs, [], []),
    lambda s, pairs: s.retry(pairs),
    lambda s, pairs: s.snooze(pairs),
    lambda s, pairs: s.release(pairs),
    lambda s, pairs: s.bury(pairs),
    lambda s, pairs: s.cancel_running(pairs),
]

PLAIN = (
    *("by_key", "expired_claims", "has_claim", "first_level", "next_priority", "next_queue", "oldest_due"),
    *("pending_of_level", "past_their_end", "running_between", "next_id", "task", "attempts_of", "ending"),
    *("open_counts", "ended_counts", "any_due", "any_begun", "lock_one", "queue_policies", "end_of_stretch"),
    *("claimed_ids", "retrying_share", "open_stretch", "end_of_open_stretch", "retries_so_far"),
    *("counts_to_merge", "lock_counts", "delete_counts", "insert_count"),
)
BY_IDS = (
    *("stored", "due_times", "visible", "not_claimed", "errors_of", "tokens", "cancel_requested"),
    *("lock_expired", "with_attempts", "lock_for_purge", "running_by_level"),
)


@pytest.fixture(params=[MYSQL, SQLITE], ids=["mysql", "sqlite"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def sql(dialect: Dialect) -> Statements:
    return Statements(dialect, "tandemq_")


def test_every_move_has_its_statement() -> None:
    assert set(MOVING) == set(MOVES)


@pytest.mark.parametrize("event", list(Event))
def test_a_statement_moves_from_and_to_what_the_table_says(sql: Statements, event: Event) -> None:
    text = MOVING[event](sql)
    before, _, where = text.partition(" WHERE ")
    move = MOVES[event]

    assert f"SET status = '{move.target}'" in before
    assert set(re.findall(r"'(\w+)'", re.search(r"status (?:= |IN )\(?([^)]*?)(?:\)| AND|$)", where)[1])) == set(  # type: ignore[index]
        move.sources
    )
    assert ("ended = " in before) == (move.target in FINAL or bool(move.sources & FINAL))
    if "ended = " in before:
        assert f"ended = {ENDED[move.target]}" in before


def test_a_changed_table_changes_the_statements(monkeypatch: pytest.MonkeyPatch, sql: Statements) -> None:
    monkeypatch.setitem(MOVES, Event.CLAIM, Move(frozenset({Status.DEAD, Status.PENDING}), Status.CANCELLED))

    assert sources(Event.CLAIM) == "status IN ('dead', 'pending')"
    assert target(Event.CLAIM) == "status = 'cancelled', ended = 3"
    assert "status IN ('dead', 'pending')" in sql.claim_lock(IDS)


@pytest.mark.parametrize("write", AFTER_A_CLAIM)
def test_every_write_after_a_claim_is_guarded_by_id_token_and_status(
    sql: Statements, write: Callable[[Statements, list[tuple[int, int]]], str]
) -> None:
    one = write(sql, ONE_TOKEN).partition(" WHERE ")[2]
    two = write(sql, TWO_TOKENS).partition(" WHERE ")[2]

    assert one == "id IN (3,5) AND status = 'running' AND lease_token = 70"
    assert two.startswith("id IN (3,5) AND status = 'running' AND (id, lease_token) IN (")
    assert two.replace("VALUES ", "").endswith("((3,70),(5,71))")
    assert "lease_token IN" not in two.replace("(id, lease_token) IN", "")


def test_the_claim_writes_no_indexed_column(sql: Statements) -> None:
    written = sql.claim(IDS).partition(" SET ")[2].partition(" WHERE ")[0]

    assert not re.search(r"\b(ended|queue|priority|run_at|idempotency_key) = ", written)


def test_no_set_reads_a_column_that_it_wrote_before(dialect: Dialect, sql: Statements) -> None:
    # MySQL goes from left to right on new values, SQLite uses old ones: they must not be able to differ.
    for text in [*(make(sql) for make in MOVING.values()), sql.snooze(ONE_TOKEN), sql.defer(IDS)]:
        written: set[str] = set()
        for part in re.split(r", (?=\w+ = )", text.partition(" SET ")[2].partition(" WHERE ")[0]):
            column, _, value = part.partition(" = ")
            read = set(re.findall(r"[a-z_]+", re.sub(r"'[^']*'", "", value)))
            assert not read & written, (column, text)
            written.add(column)


def test_a_renewal_is_no_upsert_and_names_token_and_worker(sql: Statements) -> None:
    text = sql.renew()

    assert text.startswith("UPDATE")
    assert re.search(r"WHERE lease_token = \S+ AND worker_id = \S+$", text)


def test_nothing_but_integers_is_written_into_the_text(sql: Statements) -> None:
    with pytest.raises(ValueError):
        sql.claim(["1); DROP TABLE tandemq_tasks; --"])  # type: ignore[list-item]
    assert "IN (NULL)" in sql.claim([])


def _all_texts(dialect: Dialect, prefix: str) -> list[str]:
    sql, queries = Statements(dialect, prefix), Queries(dialect, prefix)
    texts = [make(sql) for make in MOVING.values()]
    texts += [
        sql.insert_head() + sql.insert_values(r, e) for r in ("now", "after", "at") for e in ("never", "after", "at")
    ]
    texts += [sql.claim_lock(IDS), sql.insert_claim(), sql.defer(IDS), sql.renew(), sql.delete_claim(), sql.count(2)]
    texts += [sql.delete_expired_claim(), sql.disown_expired_claim(), sql.insert_attempts(2), sql.snooze(TWO_TOKENS)]
    texts += [sql.request_cancel(), sql.purge(IDS), sql.purge_attempts(), queries.held(IDS, wait=True, full=True)]
    texts += [queries.held(IDS, wait=False, full=False), queries.lock_for_replay(IDS, before=True), queries.page(["1"])]
    texts += [queries.page(["1"], ids_only=True), queries.keyed(["1"]), queries.ended_stretch(1)]
    texts += [queries.lock_for_prune(IDS, [Status.DEAD]), *(queries.counted_type(same_queue=s) for s in (True, False))]
    entries = queries.entries(by_level=True, due=False)
    texts += [queries.more_than([entries]), queries.candidates([entries] * 2), queries.count_entries(entries)]
    return [*texts, *(getattr(queries, n)() for n in PLAIN), *(getattr(queries, n)(IDS) for n in BY_IDS)]


def test_dialects_do_not_leak_into_each_other() -> None:
    for text in _all_texts(SQLITE, "tandemq_"):
        assert "%" not in text
        assert not re.search(r"UTC_TIMESTAMP|FORCE INDEX|FOR UPDATE|SHARE MODE|INTERVAL|ON DUPLICATE|GREATEST", text), (
            text
        )
    for text in _all_texts(MYSQL, "tandemq_"):
        assert "?" not in text
        assert "%" not in text.replace("%s", "")
        assert not re.search(r"tandemq_now|tandemq_shift|ON CONFLICT|RETURNING|->>|\bmax\(", text), text


def test_every_table_carries_the_prefix(dialect: Dialect) -> None:
    for text in _all_texts(dialect, "q7_"):
        rest = text.replace("tandemq_now", "").replace("tandemq_shift", "")
        assert "tandemq_" not in rest, text
        assert "q7_" in rest, text


def test_writes_to_tasks_name_the_primary_key() -> None:
    for text in _all_texts(MYSQL, "tandemq_"):
        if text.startswith("UPDATE tandemq_tasks"):
            assert text.startswith("UPDATE tandemq_tasks FORCE INDEX (PRIMARY) SET "), text
