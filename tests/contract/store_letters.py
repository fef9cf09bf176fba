"""Contract of dead letters as a tool: payload filters, walks through all that has ended, the audit log, purges."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest

from tandemq.core import crash
from tandemq.core.audit import Deed
from tandemq.core.errors import InvalidTask, TandemQError
from tandemq.core.lifecycle import Bury, DeadReason, Failure, Status
from tandemq.store import SqlStore, auditing, finding, letters, payloads
from tandemq.store.answers import Filter, PruneCursor, PruneRule
from tandemq.testing import FakeClock
from tests.contract.store_contract import Sql, StoreContract, bury, claim, fail, insert, lease, settle, succeed

#: Texts as other programs write them too, and what is asked of them.
PAYLOADS = [
    '{"order_id": 42}',
    '{"order_id": "42"}',
    '{"order_id": 42.0}',
    '{"order_id": 4.2e1}',
    '{"order_id": true}',
    '{"order_id": 1}',
    '{"order_id": null}',
    '{"order_id": "null"}',
    '{"order_id": [42]}',
    '{"order_id": {"order_id": 42}}',
    '{"order": 42}',
    '{"order_id": 41, "order_id": 42}',
    '{"order_id": 42, "order_id": 41}',
    '{"\\u006frder_id": 42}',
    '{"order_id": 9007199254740993}',
    '{"order_id": 9007199254740992}',
    '{"order_id": 123456789012345678901234567890}',
    '{"order_id": 0.1}',
    '{"order_id": 1e-320}',
    '{"order_id": 0}',
    '{"order_id": -0.0}',
    '{"order_id": ""}',
    '{"order_id": " 42"}',
    '{"order_id": "A"}',
    '{"order_id": "a"}',
    '{"order_id": "a "}',
    '{"order_id": "\\u0061"}',
    '{"order_id": "Z\\"x"}',
    '{"order_id": "ä"}',
    '{"order_id": "a\u0308"}',
    '{"order_id": "😀"}',
    '{"order_id": "\\ud83d\\ude00"}',
    '{"customer": {"city": "Bern", "tags": ["x", {"n": 7}]}}',
    '{"customer": {"city": "bern"}}',
    '{"customer.city": "Bern"}',
    '{"order_id": 42' + "".join(f',"k{n}":{n}' for n in range(50)) + "}",
    '{"deep": ' + "[" * 60 + "]" * 60 + ', "order_id": 42}',
    '  {"order_id" : 42 }  ',
    "not json, order_id 42",
    '{"order_id": NaN}',
    "[42]",
    '"order_id"',
    "",
]
WANTED: list[dict[str, Any]] = [
    *({"order_id": v} for v in (42, "42", 42.0, True, False, 1, None, "null", [42], {"order_id": 42}, 41, 0, -1)),
    *({"order_id": v} for v in (9007199254740993, 9007199254740992, 123456789012345678901234567890, 10**400, 0.1)),
    *(
        {"order_id": v}
        for v in ("", "a", "A", "a ", 'Z"x', "ä", "a\u0308", "😀", "%", "_", "'", "\\", 1e-320, float("inf"))
    ),
    {"customer.city": "Bern"},
    {"customer.city": "BERN"},
    {"customer.tags.1.n": 7},
    {"customer.tags": ["x", {"n": 7}]},
    {"customer.tags.9.n": 7},
    {"order_id": 42, "k7": 7},
    {"order_id": 42, "k7": "7"},
    {"weird key'\"\\": 1},
    {"none": 1},
]


def _every(store: SqlStore, where: Filter, limit: int) -> list[int]:
    found: list[int] = []
    cursor: PruneCursor | None = None
    while True:
        ids, cursor = store.ended_ids(where, cursor, limit=limit)
        found += ids
        if cursor is None:
            return found


def _deed(**changes: Any) -> Deed:
    return Deed(**{"action": "purge", "who": "ann", "reason": "too old", **changes})


class LettersContract(StoreContract):
    # What a payload holds

    @pytest.mark.parametrize("pages", ["whole", "tiny"])
    def test_payload_fields_are_compared_exactly_on_every_server(
        self, store: SqlStore, sql: Sql, monkeypatch: pytest.MonkeyPatch, pages: str
    ) -> None:
        if pages == "tiny":
            for name, value in {"SHORT_STRETCH": 2, "LONG_STRETCH": 9, "PARSED": 2, "CANDIDATES": 5}.items():
                monkeypatch.setattr(finding, name, value)
        for text in PAYLOADS:
            sql("INSERT INTO tandemq_tasks (task_type, payload, status, ended) VALUES ('x', :p, 'dead', 2)", p=text)
        texts = dict(sql("SELECT id, payload FROM tandemq_tasks"))

        for wanted in WANTED:
            fit = [i for i, text in sorted(texts.items()) if payloads.fits(text, wanted)]
            for where in (Filter(payload=wanted), Filter(payload=wanted, state="dead", task_type="x")):
                found, ids = [], []
                after: int | None = None
                while True:
                    page = store.find(where, limit=3, after=after)
                    ids += store.find_ids(where, limit=3, after=after)[0]
                    found += [t.id for t in page.items]
                    after = page.next
                    if after is None:
                        break
                assert found == ids == fit[::-1], (wanted, [texts[i] for i in set(found) ^ set(fit)])
            assert sorted(_every(store, Filter(state="dead", payload=wanted), 7)) == fit, wanted

    def test_the_database_leaves_out_what_cannot_fit(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a rare value would be fetched and parsed row by row."""
        for n in range(20):
            insert(store, payload=json.dumps({"order_id": n, "city": "Bern", "ok": n == 3}))
        parsed: list[Any] = []
        fits = payloads.fits
        monkeypatch.setattr(payloads, "fits", lambda *a: parsed.append(a[0]) or fits(*a))

        for wanted, count in (({"order_id": 7}, 1), ({"city": "Bern", "order_id": 8}, 1), ({"city": "Biel"}, 0)):
            parsed.clear()
            assert len(store.find(Filter(payload=wanted), limit=50).items) == count
            assert len(parsed) == count, wanted

    @pytest.mark.parametrize("bad", [{}, {"": 1}, {"a..b": 1}, {".": 1}, {f"k{n}": n for n in range(21)}])
    def test_a_path_that_is_none_is_refused(self, store: SqlStore, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidTask):
            store.find(Filter(payload=bad), limit=5)

    def test_when_a_task_ended_narrows_to_what_has_ended(self, timed: SqlStore, clock: FakeClock) -> None:
        first, second, third = claim(timed, insert(timed, 3)).leases
        insert(timed)
        for one in (first, second):
            settle(timed, (one, bury()), closing=False)
            clock.advance(10)
        now = clock.now()

        def ended(**where: Any) -> list[int]:
            return [t.id for t in timed.find(Filter(**where), limit=9).items]

        assert ended(ended_before=now - timedelta(seconds=10)) == [first.id]
        assert ended(ended_before=now) == [second.id, first.id]
        assert ended(ended_after=now - timedelta(seconds=10)) == [second.id]
        assert ended(ended_after=now - timedelta(seconds=20), ended_before=now, state="dead") == [second.id, first.id]
        assert third.id not in ended(ended_after=now - timedelta(days=9000))

    # Walks

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    def test_a_walk_meets_every_row_of_its_kind_once(self, store: SqlStore, limit: int) -> None:
        rng = random.Random(4)
        dead: dict[int, tuple[str, str]] = {}
        for n in range(30):
            queue, kind = rng.choice("abc"), rng.choice("xy")
            one = lease(store, queue=queue, task_type=kind, priority=rng.choice([-5, 0, 10]))
            if n % 3:
                settle(store, (one, Bury(DeadReason.TIMEOUT, Failure("E", f"number {n}"))))
                dead[one.id] = (queue, kind)
            else:
                settle(store, (one, succeed()))
        insert(store, 3)

        assert sorted(_every(store, Filter(state="dead"), limit)) == sorted(dead)
        for queue in "abcd":
            of_queue = sorted(i for i, (q, k) in dead.items() if q == queue and k == "x")
            assert sorted(_every(store, Filter(state="dead", queue=queue, task_type="x"), limit)) == of_queue
        assert len(_every(store, Filter(state="dead", error_text="number 1"), limit)) == 8
        assert _every(store, Filter(state="cancelled"), limit) == []

    def test_a_call_looks_at_no_more_rows_than_it_is_told(self, store: SqlStore) -> None:
        leases = claim(store, insert(store, 12)).leases
        settle(store, *((x, Bury(DeadReason.TIMEOUT, Failure("E", f"n{i}."))) for i, x in enumerate(leases)))
        where = Filter(state="dead", error_text="n11.")

        ids, cursor = store.ended_ids(where, None, limit=5)
        assert (ids, cursor is not None) == ([], True)
        assert store.ended_ids(where, cursor, limit=100) == ([leases[11].id], None)

    def test_a_walk_knows_the_kind_of_each(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, queue="q")
        clock.advance(2)
        settle(timed, (one, Bury(DeadReason.TIMEOUT, Failure("KeyError", "x" * 3000))))

        ((kind,), cursor) = timed.ended_kinds(Filter(state="dead"), None, limit=9)

        assert (kind.id, kind.queue, kind.task_type, kind.error_type) == (one.id, "q", "shop.pay", "KeyError")
        assert (kind.reason, kind.worker_id, kind.ended_at, cursor) == ("timeout", "w1", clock.now(), None)
        assert kind.error == "x" * letters.ERROR_START

    def test_full_rows_come_in_runs_that_fit_into_memory(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leases = [lease(store, payload=json.dumps({"text": "x" * 1000})) for _ in range(4)]
        settle(store, *((x, fail(0)) for x in leases))
        leases = list(claim(store, [x.id for x in leases]).leases)
        settle(store, *((x, bury()) for x in leases))
        ids = [x.id for x in leases][::-1]
        monkeypatch.setattr(letters, "FULL_BYTES", 2500)

        tasks, read = store.full([*ids[:2], 999, *ids[2:]])
        rest, more = store.full(ids[1:2])

        assert ([t.id for t in tasks], read) == (ids[:2], 3)
        assert [len(t.attempts_log) for t in tasks] == [2, 2]
        assert ([t.id for t in rest], more) == (ids[1:2], 1)
        assert store.full([]) == ([], 0)
        assert store.get(ids[0], attempts=True) == tasks[0]

    # Audit

    def test_a_deed_is_a_row_of_the_audit_log(self, timed: SqlStore, clock: FakeClock) -> None:
        clock.advance(1.5)
        (task_id,) = insert(timed)

        assert (
            timed.cancel(task_id, deed=_deed(action="cancel", task_id=task_id, details={"a": ["ä", 1]})) == "cancelled"
        )
        assert timed.cancel(task_id, deed=_deed(action="cancel", task_id=task_id)) == "cancelled"
        (record,) = timed.audit().items

        assert (record.action, record.who, record.reason, record.n) == ("cancel", "ann", "too old", 1)
        assert (record.task_id, record.run_id, record.at, record.details) == (
            task_id,
            None,
            clock.now(),
            {"a": ["ä", 1]},
        )

    def test_a_request_to_stop_is_written_once(self, store: SqlStore) -> None:
        one = lease(store)
        for _ in range(2):
            assert store.cancel(one.id, deed=_deed(action="cancel", task_id=one.id)) == "requested"
        assert len(store.audit().items) == 1

    def test_a_long_name_and_a_long_reason_are_cut_and_an_empty_deed_is_not_written(self, store: SqlStore) -> None:
        store.record(_deed(who="ö" * 400, reason="r" * 9000, action="a" * 60), 3)
        store.record(_deed(), 0)
        store.record(_deed(who="", reason="\ud800"), 1)

        second, first = store.audit().items
        assert (first.who, len(first.reason), len(first.action), first.n) == ("ö" * 255, 4000, 32, 3)
        assert (second.who, second.reason) == ("unknown", "?")

    def test_a_deed_of_many_transactions_is_one_row_that_grows(self, store: SqlStore) -> None:
        deed = _deed()
        for n in (3, 0, 4):
            store.record(deed, n)
        assert [(r.id, r.n) for r in store.audit().items] == [(deed.entry, 7)]

    def test_pages_of_the_log_go_on_below_an_id(self, store: SqlStore) -> None:
        for n in range(5):
            store.record(_deed(task_id=n % 2 + 1), 1)

        first = store.audit(limit=2)
        rest = store.audit(limit=9, after=first.next)
        assert [r.id for r in (*first.items, *rest.items)] == [5, 4, 3, 2, 1]
        assert (first.next, rest.next, store.audit(limit=5).next) == (4, None, None)
        one = store.audit(task_id=1, limit=2)
        assert ([r.id for r in one.items], one.next) == ([5, 3], 3)
        assert [r.id for r in store.audit(task_id=1, after=one.next).items] == [1]
        assert store.audit(task_id=7).items == ()

    def test_a_task_is_found_among_deeds_about_many(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auditing, "BULK_PAGE", 2)
        monkeypatch.setattr(auditing, "BULK_LOOK", 6)
        store.record(_deed(details={"ids": [1, 7]}), 2)
        for n in range(5):
            store.record(_deed(details={"ids": [10 + n]}), 1)
        store.record(_deed(task_id=7, action="edit"), 1)
        assert [(r.action, r.n) for r in store.audit(task_id=7).items] == [("edit", 1), ("purge", 2)]
        store.record(_deed(details={"ids": [99]}), 1)

        assert [r.action for r in store.audit(task_id=7).items] == ["edit"], "only so many are looked through"

    def test_a_foreign_row_of_the_log_is_shown_as_it_is(self, store: SqlStore, sql: Sql) -> None:
        sql("INSERT INTO tandemq_audit_log (who, action, details, reason) VALUES ('dba', 'x', 'by hand', 'so')")
        (record,) = store.audit().items
        assert (record.who, record.details, store.audit(task_id=1).items) == ("dba", {"text": "by hand"}, ())

    def test_there_is_no_change_without_its_row_of_the_log(self, timed: SqlStore, clock: FakeClock, sql: Sql) -> None:
        waiting, running = *insert(timed), lease(timed).id
        done, dead = claim(timed, insert(timed, 2)).leases
        settle(timed, (done, succeed()), (dead, bury()))
        clock.advance(5)
        rule = PruneRule(clock.now(), (Status.SUCCEEDED,))
        before = sql("SELECT id, status, cancel_requested_at FROM tandemq_tasks ORDER BY id")
        sql("DROP TABLE tandemq_audit_log")

        for act in (
            lambda: timed.cancel(waiting, deed=_deed()),
            lambda: timed.cancel(running, deed=_deed()),
            lambda: timed.purge([dead.id], deed=_deed()),
            lambda: timed.prune([done.id], rule, deed=_deed()),
        ):
            with pytest.raises(TandemQError):
                act()
        assert sql("SELECT id, status, cancel_requested_at FROM tandemq_tasks ORDER BY id") == before
        assert timed.counts()["ended"]["purged"] == 0

    def test_there_is_no_row_of_the_log_without_its_change(
        self, timed: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waiting, running = *insert(timed), lease(timed).id
        done, dead = claim(timed, insert(timed, 2)).leases
        settle(timed, (done, succeed()), (dead, bury()))
        clock.advance(5)
        rule = PruneRule(clock.now(), (Status.SUCCEEDED,))

        class Killed(BaseException):
            pass

        def die() -> None:
            raise Killed

        monkeypatch.setattr(crash, "_armed", None)
        for point in ("cancel.before_commit", "prune.before_commit"):
            crash.arm_call(point, die)
        for act in (
            lambda: timed.cancel(waiting, deed=_deed()),
            lambda: timed.cancel(running, deed=_deed()),
            lambda: timed.purge([dead.id], deed=_deed()),
            lambda: timed.prune([done.id], rule, deed=_deed()),
        ):
            with pytest.raises(Killed):
                act()
        monkeypatch.setattr(crash, "_armed", None)
        assert timed.audit().items == ()
        assert len(timed.find(Filter(), limit=9).items) == 4

    # Purging

    def test_a_purge_says_which_went_in_its_own_transaction(self, timed: SqlStore, clock: FakeClock) -> None:
        one, two, three = claim(timed, insert(timed, 3)).leases
        settle(timed, (one, bury()), (two, bury()), closing=False)
        clock.advance(1)
        wave = clock.now()
        settle(timed, (three, bury()))
        deed = _deed(details={"filter": {"queue": "default"}})

        assert timed.purgeable([one.id, two.id, three.id, 999]) == [one.id, two.id, three.id]
        assert timed.purge([one.id, two.id, three.id], ended_before=wave, deed=deed) == [one.id, two.id]
        assert timed.purge([one.id], ended_before=wave, deed=deed) == []
        assert timed.purge([three.id], deed=deed) == [three.id]
        second, first = timed.audit().items
        assert (first.n, first.task_id, first.details) == (
            2, None, {"filter": {"queue": "default"}, "ids": [one.id, two.id]},
        )  # fmt: skip
        assert (second.n, second.task_id) == (1, three.id)
        assert [r.id for r in timed.audit(task_id=two.id).items] == [first.id]

    def test_retention_adds_to_one_row_as_it_goes(self, timed: SqlStore, clock: FakeClock) -> None:
        leases = claim(timed, insert(timed, 5)).leases
        settle(timed, *((x, succeed()) for x in leases))
        clock.advance(10)
        rule, deed = PruneRule(clock.now(), (Status.SUCCEEDED,)), _deed(action="prune")
        ids = [x.id for x in leases]

        assert timed.prune([999], rule, deed=deed) == 0
        assert timed.audit().items == ()
        assert [timed.prune(some, rule, deed=deed) for some in (ids[:2], ids[:2], ids[2:])] == [2, 0, 3]
        assert [(r.n, r.action) for r in timed.audit().items] == [(5, "prune")]
