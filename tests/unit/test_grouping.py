from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandemq import background, grouping
from tandemq.core.clock import SystemClock
from tandemq.core.errors import EnqueueUnknown, PayloadTooLarge, StoreUnavailable, TaskTimeout
from tandemq.core.task import Inserted, NewRow
from tandemq.grouping import MAX_ROWS, GroupCommit
from tests.waiting import eventually


def row(n: int, payload: str = "{}") -> NewRow:
    return NewRow("t", payload, "default", n, 3)


class Table:
    """Stores rows in groups; the first INSERT can be held back, and rows can be refused."""

    def __init__(self, *, hold: bool = False) -> None:
        self.groups: list[list[int]] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.refuse: set[int] = set()
        self.away: BaseException | None = None
        if not hold:
            self.go.set()

    def insert(self, rows: Sequence[NewRow]) -> list[Inserted]:
        self.entered.set()
        assert self.go.wait(60)
        if self.away is not None:
            raise self.away
        if self.refuse & {r.priority for r in rows}:
            raise PayloadTooLarge("too large", field="payload")
        self.groups.append([r.priority for r in rows])
        return [Inserted(1000 + r.priority, True, r.queue, r.priority) for r in rows]


def rush(table: Table, n: int) -> list[object]:
    """One call that inserts alone while ``n`` others queue up behind it; what each was answered."""
    group = GroupCommit(table.insert, SystemClock())

    def call(i: int) -> object:
        try:
            return group.store(row(i)).id
        except Exception as error:
            return error

    with ThreadPoolExecutor(n + 1) as pool:
        first = pool.submit(call, 0)
        assert table.entered.wait(60)
        others = []
        for i in range(1, n + 1):  # one by one: the order in which they wait is known
            others.append(pool.submit(call, i))
            eventually(lambda i=i: len(group._waiting) == i, every_s=0.001)
        table.go.set()
        return [f.result(60) for f in [first, *others]]


def test_a_call_that_is_alone_inserts_at_once_and_alone() -> None:
    table = Table()
    group = GroupCommit(table.insert, SystemClock())
    assert [group.store(row(i)).id for i in range(3)] == [1000, 1001, 1002]
    assert table.groups == [[0], [1], [2]]


def test_calls_that_come_during_an_insert_share_the_next_one() -> None:
    table = Table(hold=True)
    assert rush(table, 30) == [1000 + i for i in range(31)]
    assert [len(g) for g in table.groups] == [1, 30]


def test_a_refused_row_is_only_its_own_callers_error() -> None:
    table = Table(hold=True)
    table.refuse = {3}
    answers = rush(table, 5)
    assert isinstance(answers.pop(3), PayloadTooLarge)
    assert answers == [1000, 1001, 1002, 1004, 1005]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), EnqueueUnknown("cut")])
def test_a_server_that_is_away_is_everybodys_error_and_nothing_is_sent_again(error: Exception) -> None:
    table = Table(hold=True)
    table.away = error
    answers = rush(table, 5)
    assert [type(a) for a in answers] == [type(error)] * 6
    assert len({id(a) for a in answers}) >= 5
    assert table.groups == []


def interrupt(thread: threading.Thread) -> None:
    """As a time limit does: TaskTimeout at the thread's next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TaskTimeout))


def test_a_caller_that_is_interrupted_while_it_waits_leaves_the_others_alone() -> None:
    table = Table(hold=True)
    group = GroupCommit(table.insert, SystemClock())
    answers: list[object] = []

    def call(n: int) -> None:
        try:
            answers.append(group.store(row(n)).id)
        except TaskTimeout:
            answers.append("interrupted")

    threads = [threading.Thread(target=call, args=(n,)) for n in range(3)]
    threads[0].start()
    assert table.entered.wait(60)
    threads[1].start()
    eventually(lambda: len(group._waiting) == 1)
    interrupt(threads[1])
    threads[2].start()
    eventually(lambda: any(call.row.priority == 2 for call in list(group._waiting)))
    table.go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(map(str, answers)) in (["1000", "1002", "interrupted"], ["1000", "1001", "1002"])
    assert group.store(row(9)).id == 1009


def test_a_broken_insert_tells_those_it_was_for_that_nobody_knows() -> None:
    table = Table(hold=True)
    table.away = KeyboardInterrupt()
    group = GroupCommit(table.insert, SystemClock())
    errors: list[type[BaseException]] = []

    def call(n: int) -> None:
        try:
            group.store(row(n))
        except BaseException as error:
            errors.append(type(error))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    threads[0].start()
    assert table.entered.wait(60)
    for waiting, thread in enumerate(threads[1:], 1):
        thread.start()
        eventually(lambda n=waiting: len(group._waiting) == n)
    table.go.set()
    for thread in threads:
        thread.join(60)
    assert sorted(e.__name__ for e in errors) == ["EnqueueUnknown"] * 3 + ["KeyboardInterrupt"]
    table.away = None
    assert group.store(row(9)).id == 1009


def test_a_caller_that_finds_the_thread_gone_starts_another() -> None:
    table = Table(hold=True)
    assert rush(table, 3) == [1000, 1001, 1002, 1003]
    group = GroupCommit(table.insert, SystemClock())
    for turn in range(2):
        table.go.clear()
        table.entered.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(group.store, row(1))
            assert table.entered.wait(60)
            second = pool.submit(group.store, row(2))
            eventually(lambda: len(group._waiting) == 1)
            table.go.set()
            assert [first.result(60).id, second.result(60).id] == [1001, 1002], turn
        group.close()
        assert not group._thread.is_running


def test_a_caller_whose_thread_never_came_to_life_is_answered_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a TaskTimeout for the caller hits the thread that he has just made."""
    table = Table(hold=True)
    group = GroupCommit(table.insert, SystemClock())
    started: list[object] = []
    plain = background._thread.start_new_thread

    def stillborn(function: object, args: tuple[()]) -> int:
        started.append(function)
        return plain(function, args) if len(started) > 1 else 0  # type: ignore[arg-type]

    monkeypatch.setattr(background._thread, "start_new_thread", stillborn)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(group.store, row(1))
        assert table.entered.wait(60)
        second = pool.submit(group.store, row(2))
        eventually(lambda: len(group._waiting) == 1)
        table.go.set()
        assert [first.result(60).id, second.result(60).id] == [1001, 1002]
    assert len([f for f in started if f == group._thread._live]) == 2
    group.close()


def test_callers_hit_by_time_limits_at_any_moment_leave_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red under: threading.Thread, whose start() waits for ever for a thread that died of its maker's TaskTimeout."""
    monkeypatch.setattr(background, "START_AGAIN_S", 0.02)
    monkeypatch.setattr(grouping, "LOOK_AGAIN_S", 0.02)
    dice = random.Random(7)
    for _ in range(300):
        table = Table(hold=True)
        group = GroupCommit(table.insert, SystemClock())

        def call(n: int, group: GroupCommit = group) -> None:
            with contextlib.suppress(TaskTimeout):
                group.store(row(n))

        threads = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(3)]
        threads[0].start()
        assert table.entered.wait(60)
        threads[1].start()
        give_up_at = time.monotonic() + 60
        while len(group._waiting) != 1 and time.monotonic() < give_up_at:
            pass
        end = time.perf_counter() + dice.random() * 0.001
        while time.perf_counter() < end:
            pass
        interrupt(threads[1])
        threads[2].start()
        table.go.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        group.close()


def test_one_who_enqueues_while_his_thread_is_inserting_does_not_wait_for_himself() -> None:
    """A signal handler, or a logging handler that reports to a queue."""
    group: GroupCommit
    ids: list[int] = []

    def insert(rows: Sequence[NewRow]) -> list[Inserted]:
        if rows[0].priority == 1:
            ids.append(group.store(row(2)).id)
        return [Inserted(1000 + r.priority, True, r.queue, r.priority) for r in rows]

    group = GroupCommit(insert, SystemClock())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: group.store(row(1)).id).result(60) == 1001
    assert ids == [1002]


def test_callers_that_were_taken_are_answered_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(hold=True)
    plain = GroupCommit._take

    def take(self: GroupCommit, group: list[object]) -> None:
        plain(self, group)  # type: ignore[arg-type]
        if group:
            monkeypatch.undo()
            raise MemoryError

    monkeypatch.setattr(GroupCommit, "_take", take)
    answers = rush(table, 3)
    assert [type(answer) for answer in answers] == [int, EnqueueUnknown, EnqueueUnknown, EnqueueUnknown]


def test_a_group_is_bounded() -> None:
    table = Table(hold=True)
    assert len(rush(table, MAX_ROWS + 20)) == MAX_ROWS + 21
    assert max(len(g) for g in table.groups) == MAX_ROWS
