"""What workers in other languages do with a task, without HTTP: tokens, heartbeats, results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq.core.errors import InvalidTask, LeaseLost, StoreBusy, StoreUnavailable, StoreUnknown, TaskNotFound
from tandemq.core.lifecycle import Status
from tandemq.remote import Failed, Proof, Token
from tandemq.remote.terms import lease_length
from tandemq.remote.work import NO_WAIT_S
from tandemq.store.answers import Settled
from tandemq.testing import FakeClock
from tests.unit.remote_bed import LOW, ME, Bed


@pytest.fixture
def bed(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> Bed:
    return Bed(tandemq_app, tandemq_clock)


# tokens


def test_a_token_is_opaque_text_that_carries_the_length_of_its_lease() -> None:
    for lease_s, text in [(30.0, "30"), (0.1, "0.1"), (86_400.0, "86400"), (1.5, "1.5"), (12345.678, "12345.678")]:
        token = Token(0x1F, lease_s)
        assert str(token) == f"000000000000001f-{text}"
        assert Token.read(str(token)) == token
    assert Token.read(31) == Token(31, None)


@pytest.mark.parametrize(
    "text",
    ["", "1f", "1f-30", "000000000000001F-30", "000000000000001f-", "000000000000001f-0", "000000000000001f-1e3",
     "000000000000001f-30 ", "000000000000001f-86401", "000000000000001f-30\n", "\ud800", "1" * 500],
)  # fmt: skip
def test_what_is_no_token_is_none(text: str) -> None:
    assert Token.read(text) is None


# heartbeats


def lease_end(bed: Bed, task_id: int) -> float:
    end = bed.task(task_id).lease_expires_at
    assert end is not None
    return (end - bed.clock.now()).total_seconds()


def test_a_heartbeat_keeps_one_task_and_no_neighbour(bed: Bed) -> None:
    bed.enqueue(), bed.enqueue()
    one, other = bed.take(2, lease_s=20.0)
    proof = Proof(str(Token(one.token, 20.0)))
    bed.clock.advance(15)
    beat = bed.work.heartbeat(one.id, proof)

    assert (beat.token, beat.cancel_requested) == (Token(one.token, 20.0), False)
    assert (lease_end(bed, one.id), lease_end(bed, other.id)) == (20.0, 5.0)
    assert beat.expires_at == bed.clock.now() + timedelta(seconds=20)


def test_how_long_a_heartbeat_renews_for(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    raw = bed.store.holding(task_id).lease.token
    for given, lease_s, expected in [
        (proof, None, 30.0),
        (proof, 100.0, 100.0),
        (Proof(str(Token(raw, 7.5))), None, 7.5),
        (Proof(worker_id=ME), None, bed.app.settings.lease_s),
        (Proof(raw), None, bed.app.settings.lease_s),
    ]:
        assert bed.work.heartbeat(task_id, given, lease_s).token == Token(raw, expected)
        assert lease_end(bed, task_id) == expected


def test_without_a_claims_row_nothing_can_be_kept_but_the_result_counts(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.store._inner.db.write(lambda tx: tx.write(f"DELETE FROM {bed.app.settings.table_prefix}claims"))
    with pytest.raises(LeaseLost):
        bed.work.heartbeat(task_id, proof)
    assert bed.work.complete(task_id, proof).status is Status.SUCCEEDED


def test_nothing_is_left_in_claims(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.work.complete(task_id, proof)
    task_id, proof = bed.claimed()
    bed.work.fail(task_id, proof, Failed())
    bed.enqueue()
    bed.claims.hand_back(bed.take(), ME)
    bed.clock.advance(86_400)
    assert bed.store.expired_claims(10) == []


def test_a_lease_that_has_run_out_but_was_not_ended_may_be_renewed(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.clock.advance(40)
    bed.work.heartbeat(task_id, proof)
    assert not bed.expire(task_id)


def test_a_heartbeat_tells_of_a_cancel_request(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.app.cancel(task_id)
    assert bed.work.heartbeat(task_id, proof).cancel_requested


def test_a_lost_lease_stays_lost(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.clock.advance(40)
    assert bed.expire(task_id)
    calls: list[Callable[[], object]] = [
        lambda: bed.work.heartbeat(task_id, proof),
        lambda: bed.work.complete(task_id, proof),
        lambda: bed.work.fail(task_id, proof, Failed(error="late")),
        lambda: bed.work.complete(task_id, Proof(worker_id=ME)),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            call()
    bed.clock.advance(60)
    bed.app.broker.push(LOW, [task_id])
    (again,) = bed.take(worker_id="another")
    for call in calls:
        with pytest.raises(LeaseLost):
            call()
    assert [a.outcome for a in bed.task(task_id).attempts_log] == ["lease_lost"], "refused by a read, not by a write"
    bed.work.complete(task_id, Proof(str(Token(again.token, 30.0))))


# results


def test_a_result_is_kept_and_the_same_call_again_is_the_same_answer(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    for _ in range(2):
        task = bed.work.complete(task_id, proof, {"n": [1, 2.5, "ä"]})
        assert (task.status, task.result) == (Status.SUCCEEDED, '{"n":[1,2.5,"ä"]}')
    assert bed.store.calls.count("finish") == 1
    assert bed.store.counts()["ended"]["succeeded"] == 1
    assert bed.work.complete(task_id, Proof(worker_id=ME)).status is Status.SUCCEEDED
    with pytest.raises(LeaseLost):
        bed.work.fail(task_id, proof, Failed())
    with pytest.raises(LeaseLost):
        bed.work.complete(task_id, Proof(worker_id="another"))
    with pytest.raises(LeaseLost):
        bed.work.heartbeat(task_id, proof)


def test_both_proofs_must_be_right_where_both_are_given(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    for wrong in (
        Proof(proof.token, "another"),
        Proof("00000000000000ff-30", ME),
        Proof(0),
        Proof(-1),
        Proof("?"),
        Proof(10**400),
        Proof(worker_id=""),
        Proof(proof.token, ME[:-1]),
    ):
        with pytest.raises(LeaseLost):
            bed.work.complete(task_id, wrong)
    assert bed.store.calls.count("finish") == 0
    assert bed.task(task_id).attempts_log == ()
    bed.work.complete(task_id, Proof(proof.token, ME))


def test_a_task_that_nobody_ever_claimed_is_nobodys(bed: Bed) -> None:
    task_id = bed.enqueue()
    for proof in (Proof(0), Proof("0000000000000000-30"), Proof(worker_id=""), Proof(worker_id=ME)):
        with pytest.raises(LeaseLost):
            bed.work.complete(task_id, proof)
    with pytest.raises(TaskNotFound):
        bed.work.complete(4711, Proof(worker_id=ME))


def test_a_long_worker_id_is_known_by_its_end(bed: Bed) -> None:
    name = "x" * 30 + "-" + "y" * 33
    bed.enqueue()
    (lease,) = bed.take(worker_id=name)
    assert bed.work.heartbeat(lease.id, Proof(worker_id=name))
    assert bed.work.complete(lease.id, Proof(worker_id=name)).worker_id == name[-48:]


def test_what_a_worker_process_holds_in_a_batch_is_not_ended_from_here(bed: Bed) -> None:
    ids = [bed.enqueue(), bed.enqueue()]
    bed.store.claim(ids, token=4711, worker_id="batch", lease_s=30.0, free=2, known=None, unknown_task_s=60.0)
    for proof in (Proof(4711), Proof(worker_id="batch")):
        for call in (
            lambda proof=proof: bed.work.complete(ids[0], proof),
            lambda proof=proof: bed.work.heartbeat(ids[0], proof),
        ):
            with pytest.raises(LeaseLost, match="worker process"):
                call()
    assert lease_end(bed, ids[1]) == 30.0


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}])
def test_every_result_is_a_result(bed: Bed, result: Any) -> None:
    task_id, proof = bed.claimed()
    assert bed.work.complete(task_id, proof, result).to_json()["result"] == result


def test_a_result_that_is_too_large_is_left_out_and_the_work_is_done(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    task = bed.work.complete(task_id, proof, "x" * bed.app.settings.max_result_bytes)
    assert (task.status, task.result, task.error_type) == (Status.SUCCEEDED, None, "ResultNotStorable")
    assert str(bed.app.settings.max_result_bytes) in (task.last_error or "")

    task_id, proof = bed.claimed()
    with pytest.raises(InvalidTask, match=r"result\.x"):
        bed.work.complete(task_id, proof, {"x": "\ud800"})
    assert bed.state(task_id) == ("running", 1)


def test_an_answer_that_was_lost_is_asked_for_once_more(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.fails(bed.store, "finish", StoreUnknown("cut"), when="after")
    assert bed.work.complete(task_id, proof, 1).status is Status.SUCCEEDED
    assert bed.store.counts()["ended"]["succeeded"] == 1

    task_id, proof = bed.claimed()
    bed.fails(bed.store, "finish", StoreUnknown("cut"), StoreUnknown("cut"))
    with pytest.raises(StoreUnknown):
        bed.work.complete(task_id, proof, 1)
    assert bed.work.complete(task_id, proof, 1).status is Status.SUCCEEDED


def test_what_may_have_been_written_is_never_called_unwritten(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.fails(bed.store, "finish", StoreUnknown("cut"), when="after")
    errors = iter([None, StoreUnavailable("away")])

    def away(*_: Any, **__: Any) -> None:
        if (error := next(errors)) is not None:
            raise error

    bed.store.before["finish"] = away
    with pytest.raises(StoreUnknown):
        bed.work.complete(task_id, proof)
    bed.store.before.clear()
    assert bed.task(task_id).status is Status.SUCCEEDED

    task_id, proof = bed.claimed()
    bed.fails(bed.store, "get", StoreUnavailable("away"))
    with pytest.raises(StoreUnknown):
        bed.work.complete(task_id, proof)
    assert bed.task(task_id).status is Status.SUCCEEDED


def test_a_locked_row_is_busy_and_the_next_ones_are_not_waited_for(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    tries, finish = list[bool](), bed.store.finish

    def locked(settlements: Any, *, again: bool, **_: Any) -> Settled:
        tries.append(again)
        return Settled(locked=(task_id,))

    bed.store.finish = locked
    for _ in range(2):
        with pytest.raises(StoreBusy):
            bed.work.complete(task_id, proof)
    bed.clock.advance(NO_WAIT_S)
    with pytest.raises(StoreBusy):
        bed.work.complete(task_id, proof)
    assert tries == [False, True, False]
    bed.store.finish = finish
    assert bed.work.complete(task_id, proof).status is Status.SUCCEEDED


def test_the_length_of_a_lease_stays_within_what_a_token_can_tell(bed: Bed) -> None:
    for given, kept in [(0.01, 0.1), (1e6, 86_400.0), (1.23456, 1.235)]:
        assert lease_length(given) == kept
        assert Token.read(str(Token(1, kept))) == Token(1, kept)
    bed.enqueue()
    (lease,) = bed.take()
    object.__setattr__(bed.app.settings, "lease_s", 1e6)
    beat = bed.work.heartbeat(lease.id, Proof(worker_id=ME))
    assert bed.work.complete(lease.id, Proof(str(beat.token))).status is Status.SUCCEEDED
