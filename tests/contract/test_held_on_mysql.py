"""Held tasks on MySQL, where others hold locks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandemq.core.audit import Deed
from tandemq.core.pausing import PauseKind
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect, holding
from tandemq.store.transaction import Tx
from tests.contract.store_contract import claim, insert
from tests.servers import MySQLServer


def pause(store: SqlStore) -> None:
    store.pause(PauseKind.TYPE, "shop.pay", None, deed=Deed(action="pause", who="ada"))


def resume(store: SqlStore) -> None:
    store.resume(PauseKind.TYPE, "shop.pay", deed=Deed(action="resume", who="ada"))


@contextmanager
def locked_rows(settings: Settings, server: MySQLServer, where: str = "1 = 1") -> Iterator[None]:
    operator = server.connect(settings.database_url.rpartition("/")[2])
    operator.autocommit(False)
    with operator.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {settings.table_prefix}tasks WHERE {where} FOR UPDATE")
        yield
        operator.rollback()
    operator.close()


def test_a_held_row_that_somebody_locks_is_woken_the_next_time(
    store: SqlStore, settings: Settings, mysql_server: MySQLServer
) -> None:
    locked, free = insert(store, 2)
    pause(store)
    claim(store, [locked, free], paused={"shop.pay"})
    resume(store)
    with locked_rows(settings, mysql_server, f"id = {locked}"):
        assert [move.id for move in store.release_held(10)[0]] == [free]
    assert [move.id for move in store.release_held(10)[0]] == [locked]
    assert store.release_held(10) == ([], False)


def test_waking_ends_where_somebody_holds_all_that_are_left(
    store: SqlStore, settings: Settings, mysql_server: MySQLServer
) -> None:
    ids = insert(store, 4)
    pause(store)
    claim(store, ids, paused={"shop.pay"})
    resume(store)
    with locked_rows(settings, mysql_server):
        assert store.release_held(2) == ([], False), "nothing to go on with at once"
    first, more = store.release_held(2)
    assert more
    assert [move.id for move in (*first, *store.release_held(2)[0])] == ids


def test_a_task_that_is_held_anew_in_the_same_moment_is_not_forgotten(
    store: SqlStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, (mine,) = connect(settings), insert(store)
    pause(store)
    claim(store, [mine], paused={"shop.pay"})
    store.cancel(mine)
    store.replay([mine])  # what was kept of it is old now
    is_held, go_on = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        held = holding.hold(*args)
        is_held.set()
        go_on.wait(60)
        return held

    monkeypatch.setattr("tandemq.store.claiming.hold", slowly)
    claiming = threading.Thread(target=claim, args=(other, [mine]), kwargs={"paused": {"shop.pay"}})
    claiming.start()
    assert is_held.wait(60)
    resume(store)
    threading.Timer(0.5, go_on.set).start()
    moved = list(store.release_held(10)[0])  # waits for the other's lock on what is kept
    claiming.join(60)
    other.close()
    moved += store.release_held(10)[0]
    assert [move.id for move in moved] == [mine]


def test_a_pass_does_not_read_what_is_held_of_paused_types(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(store)
    claim(store, insert(store, 300), free=300, paused={"shop.pay"})
    read, rows = store.db.read, list[int]()

    def handled(tx: Tx) -> int:
        return sum(int(n) for _, n in tx.rows("SHOW SESSION STATUS LIKE 'Handler_read%%'"))

    def counted(work: Callable[[Tx], Any]) -> Any:
        def between(tx: Tx) -> Any:
            before = handled(tx)
            answer = work(tx)
            rows.append(handled(tx) - before)
            return answer

        return read(between)

    monkeypatch.setattr(store.db, "read", counted)
    assert store.release_held(500) == ([], False)
    assert rows[0] < 150, "the two looks at the status count about thirty themselves"
