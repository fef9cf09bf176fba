"""Contract of verdicts: what each writes, who may write it, and what becomes of the claims row."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tandemq.core.lifecycle import Bury, DeadReason, Event, Release, RetryIn, SnoozeIn, Status, Succeed, Verdict
from tandemq.core.task import epoch_ms
from tandemq.store import SqlStore
from tandemq.store.answers import Settlement
from tandemq.testing import FakeClock
from tests.contract.store_contract import (
    FAILURE,
    Sql,
    StoreContract,
    bury,
    claim,
    fail,
    insert,
    lease,
    settle,
    succeed,
)


def _claims(sql: Sql) -> int:
    return int(sql("SELECT COUNT(*) FROM tandemq_claims")[0][0])


class SettlingContract(StoreContract):
    def test_successes_with_and_without_results(self, timed: SqlStore, clock: FakeClock, sql: Sql) -> None:
        leases = claim(timed, insert(timed, 4)).leases
        results = ['{"r":"😀"}', None, "[]", '"x"']
        clock.advance(1)
        settled = settle(timed, *((x, succeed(r)) for x, r in zip(leases, results, strict=True)))

        assert [(m.id, m.event, m.status) for m in settled.moved] == [
            (x.id, Event.SUCCEED, Status.SUCCEEDED) for x in leases
        ]
        assert [timed.ending(x.id) for x in leases] == [(Status.SUCCEEDED, r, None, None) for r in results]
        assert _claims(sql) == 0
        task = timed.get(leases[0].id)
        assert task is not None
        assert (task.completed_at, task.updated_at) == (clock.now(), clock.now())
        assert timed.counts()["ended"]["succeeded"] == 4

    def test_a_retry_is_due_by_the_databases_clock(self, timed: SqlStore, clock: FakeClock) -> None:
        one, two = claim(timed, insert(timed, 2)).leases
        settled = settle(timed, (one, fail(1.5)), (two, fail(2.25)))
        tasks = [timed.get(x.id, attempts=True) for x in (one, two)]

        for moved, task, delay in zip(settled.moved, tasks, (1.5, 2.25), strict=True):
            assert task is not None
            assert abs(task.run_at - clock.now() - timedelta(seconds=delay)) <= timedelta(microseconds=1)
            assert (moved.event, moved.status, moved.due_ms) == (Event.RETRY, Status.PENDING, epoch_ms(task.run_at))
            assert (task.state, task.attempts, task.last_error) == ("retrying", 1, FAILURE.message)
            assert task.error_type == "ValueError"
            (attempt,) = task.attempts_log
            assert (attempt.outcome, attempt.attempt, attempt.fence) == ("failed", 1, 1)
            assert (attempt.error, attempt.traceback) == (FAILURE.message, FAILURE.traceback)
            assert (attempt.started_at, attempt.ended_at) == (clock.now(), clock.now())
        assert timed.counts()["ended"]["retried"] == 2

    def test_a_burial_says_why(self, timed: SqlStore, clock: FakeClock) -> None:
        one, two = claim(timed, insert(timed, 2)).leases
        settled = settle(timed, (one, bury()), (two, Bury(DeadReason.TIMEOUT, FAILURE, "timeout")))
        task = timed.get(two.id, attempts=True)

        assert [(m.event, m.dead_reason, m.due_ms) for m in settled.moved] == [
            (Event.BURY, "retries_exhausted", None),
            (Event.BURY, "timeout", None),
        ]
        assert task is not None
        assert (task.status, task.dead_reason, task.completed_at) == (Status.DEAD, "timeout", clock.now())
        assert [a.outcome for a in task.attempts_log] == ["timeout"]
        assert timed.ending(one.id) == (Status.DEAD, None, FAILURE.message, "retries_exhausted")

    def test_snooze_and_release_give_the_attempt_back(self, timed: SqlStore, clock: FakeClock) -> None:
        before = clock.now()
        one, two, three = claim(timed, insert(timed, 3)).leases
        clock.advance(3)
        settled = settle(timed, (one, SnoozeIn(60)), (two, Release()), (three, Release(FAILURE)))
        tasks = [timed.get(x.id, attempts=True) for x in (one, two, three)]

        assert [m.event for m in settled.moved] == [Event.RETRY, Event.RELEASE, Event.RELEASE]
        assert [t.attempts for t in tasks if t] == [0, 0, 0]
        assert [t.state for t in tasks if t] == ["scheduled", "ready", "ready"]
        assert [t.run_at for t in tasks if t] == [clock.now() + timedelta(seconds=60), before, before]
        assert [[a.outcome for a in t.attempts_log] for t in tasks if t] == [[], [], ["interrupted"]]
        assert [x.fence for x in claim(timed, [two.id]).leases] == [2]

    def test_a_result_that_cannot_be_stored_leaves_a_note(self, store: SqlStore) -> None:
        one, two = claim(store, insert(store, 2)).leases
        settle(store, (one, Succeed(None, "result is a set 😀")), (two, succeed("1")))
        noted, plain = store.get(one.id), store.get(two.id)

        assert noted is not None
        assert (noted.status, noted.error_type, noted.last_error) == (
            Status.SUCCEEDED,
            "ResultNotStorable",
            "result is a set 😀",
        )
        assert plain is not None
        assert (plain.result, plain.error_type, plain.last_error) == ("1", None, None)

    def test_results_of_many_megabytes_go_in_one_transaction(self, store: SqlStore) -> None:
        leases = claim(store, insert(store, 6)).leases
        texts = ['"' + c * 700_000 + '"' for c in "abcdef"]
        settled = settle(store, *((x, succeed(t)) for x, t in zip(leases, texts, strict=True)))

        assert len(settled.moved) == 6
        assert [(store.ending(x.id) or ("", ""))[1] for x in leases] == texts

    # Fencing

    @pytest.mark.parametrize("verdict", [succeed("1"), fail(), bury(), Release(), SnoozeIn(1)])
    def test_a_late_worker_cannot_settle_a_lease_it_lost(self, store: SqlStore, verdict: Verdict) -> None:
        old = lease(store)
        settle(store, (old, fail(0)))
        (new,) = claim(store, [old.id], worker_id="w2").leases
        late = settle(store, (old, verdict))
        task = store.get(old.id, attempts=True)

        assert (late.moved, late.fenced) == ((), (old.id,))
        assert task is not None
        assert (task.status, task.worker_id, task.attempts) == (Status.RUNNING, "w2", 2)
        assert [(a.outcome, a.fence) for a in task.attempts_log] == [("failed", 1), ("fenced", 1)]
        assert settle(store, (new, succeed())).moved

    def test_a_success_after_the_lease_was_ended_is_refused(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        clock.advance(31)
        timed.end_lease(one.token, [one.id], judge=lambda _: fail(0), worker_id="r", expired_only=True)

        assert settle(timed, (one, succeed())).fenced == (one.id,)
        assert (timed.ending(one.id) or ("",))[0] is Status.PENDING

    def test_a_token_from_before_a_replay_is_refused(self, store: SqlStore) -> None:
        one = lease(store)
        settle(store, (one, bury()))
        store.replay([one.id])
        claim(store, [one.id])

        assert settle(store, (one, succeed())).fenced == (one.id,)

    def test_a_purged_task_is_fenced_and_leaves_no_history(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        settle(store, (one, succeed()))
        assert store.purge([one.id]) == [one.id]

        assert settle(store, (one, fail())).fenced == (one.id,)
        assert sql("SELECT COUNT(*) FROM tandemq_task_attempts") == [(0,)]

    def test_verdicts_of_two_tokens_are_matched_in_pairs(self, store: SqlStore) -> None:
        ids = insert(store, 2)
        first, second = (claim(store, [i]).leases[0] for i in ids)
        settle(store, (first, Release()), closing=False)
        (again,) = claim(store, [first.id], token=second.token + 1000).leases
        settled = settle(store, (first, succeed("1")), (second, succeed("2")), closing=False)

        assert [m.id for m in settled.moved] == [second.id]
        assert settled.fenced == (first.id,)
        assert settle(store, (again, succeed("3"))).moved

    def test_one_flush_may_hold_an_old_and_a_new_verdict_of_a_row(self, store: SqlStore) -> None:
        old = lease(store)
        settle(store, (old, Release()), closing=False)
        (new,) = claim(store, [old.id]).leases
        settled = settle(store, (old, succeed("1")), (new, succeed("2")), (new, succeed("2")))

        assert ([m.id for m in settled.moved], settled.fenced) == ([old.id], (old.id,))
        assert (store.ending(old.id) or ("", ""))[1] == "2"

    @pytest.mark.parametrize("verdict", [succeed("1"), fail(60), bury(), Release(), SnoozeIn(60)])
    def test_a_verdict_sent_twice_is_accepted_twice(self, store: SqlStore, verdict: Verdict) -> None:
        one = lease(store)
        first = settle(store, (one, verdict))
        second = settle(store, (one, verdict))

        assert len(first.moved) == 1
        assert (second.moved, second.fenced) == (first.moved, ())
        ended = store.counts()["ended"]
        assert ended["succeeded"] + ended["retried"] + ended["dead_total"] <= 1

    def test_half_of_a_flush_sent_again_counts_once(self, store: SqlStore) -> None:
        leases = claim(store, insert(store, 4)).leases
        settle(store, *((x, succeed()) for x in leases[:2]), closing=False)
        settled = settle(store, *((x, succeed()) for x in leases))

        assert len(settled.moved) == 4
        assert store.counts()["ended"]["succeeded"] == 4

    def test_another_burial_than_the_one_written_is_refused(self, store: SqlStore) -> None:
        one = lease(store)
        settle(store, (one, Bury(DeadReason.LEASE_LOST, FAILURE, "lease_lost")))

        assert settle(store, (one, bury())).fenced == (one.id,)

    # Cancel

    @pytest.mark.parametrize("verdict", [fail(), Release(), Release(FAILURE), SnoozeIn(9)])
    def test_a_cancel_request_turns_a_way_back_into_cancelled(self, store: SqlStore, verdict: Verdict) -> None:
        one = lease(store)
        assert store.cancel(one.id) == "requested"
        assert store.cancel_requested([one.id, 999]) == {one.id}
        settled = settle(store, (one, verdict))

        assert [(m.event, m.status, m.due_ms) for m in settled.moved] == [
            (Event.CANCEL_RUNNING, Status.CANCELLED, None)
        ]
        task = store.get(one.id)
        assert task is not None
        assert (task.status, task.state) == (Status.CANCELLED, "cancelled")
        assert task.completed_at is not None
        assert claim(store, [one.id]).leases == ()
        assert store.counts()["ended"]["cancelled"] == 1
        assert settle(store, (one, verdict)).moved == settled.moved

    @pytest.mark.parametrize(("verdict", "status"), [(succeed(), Status.SUCCEEDED), (bury(), Status.DEAD)])
    def test_success_and_death_win_over_a_cancel_request(
        self, store: SqlStore, verdict: Verdict, status: Status
    ) -> None:
        one = lease(store)
        store.cancel(one.id)

        assert [m.status for m in settle(store, (one, verdict)).moved] == [status]

    def test_a_lost_lease_with_a_cancel_request_is_cancelled(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        timed.cancel(one.id)
        clock.advance(31)
        settled = timed.end_lease(one.token, [one.id], judge=lambda _: fail(), worker_id="r", expired_only=True)

        assert settled is not None
        assert [m.status for m in settled.moved] == [Status.CANCELLED]

    # The claims row

    def test_the_claims_row_goes_with_the_last_verdict_only(self, store: SqlStore, sql: Sql) -> None:
        one, two, three = claim(store, insert(store, 3)).leases
        settle(store, (one, succeed()), closing=False)
        settle(store, (two, Release()), closing=False)
        assert _claims(sql) == 1

        settle(store, (three, fail()))
        assert _claims(sql) == 0

    def test_a_fenced_last_verdict_takes_the_claims_row_too(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        settle(store, (one, fail(0)), closing=False)
        (new,) = claim(store, [one.id]).leases
        settle(store, (one, succeed()))

        assert sql("SELECT lease_token FROM tandemq_claims") == [(new.token,)]

    def test_closing_alone_takes_the_claims_row(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        settle(store, (one, succeed()), closing=False)
        store.finish([], closing=[one.token], worker_id="w1")

        assert _claims(sql) == 0
        assert store.finish([], closing=[], worker_id="w1").moved == ()

    # Texts

    def test_hostile_texts_are_stored_as_they_are(self, store: SqlStore) -> None:
        text = "' \" \\ %s %d ? \n\r\t\x00 😀 漢字 ' -- ; DROP TABLE tandemq_tasks"
        one, two = claim(store, insert(store, 2)).leases
        failure = FAILURE.__class__("E'\"\\", text, text)
        settle(store, (one, RetryIn(0, failure)), (two, Succeed(None, text)))
        task = store.get(one.id, attempts=True)
        noted = store.get(two.id)

        assert task is not None
        assert (task.last_error, task.error_type) == (text, "E'\"\\")
        assert task.attempts_log[0].traceback == text
        assert noted is not None
        assert noted.last_error == text

    def test_a_verdict_that_the_database_refuses_does_not_hold_up_the_others(self, store: SqlStore) -> None:
        leases = claim(store, insert(store, 5)).leases
        broken = FAILURE.__class__("E", "lone surrogate \udc80", "")
        verdicts: list[Verdict] = [succeed("1"), fail(), RetryIn(5, broken), bury(), Succeed("\udc80")]
        settled = store.finish(
            [Settlement(x, v) for x, v in zip(leases, verdicts, strict=True)],
            closing=[leases[0].token],
            worker_id="w1",
        )
        third, last = store.get(leases[2].id), store.get(leases[4].id)

        assert sorted(m.id for m in settled.moved) == [x.id for x in leases]
        assert third is not None
        assert last is not None
        assert (third.status, third.attempts, third.error_type) == (Status.PENDING, 1, "TextRefused")
        assert (last.status, last.result, last.error_type) == (Status.SUCCEEDED, None, "ResultNotStorable")
        assert store.renew([leases[0].token], worker_id="w1", lease_s=30) == set()
