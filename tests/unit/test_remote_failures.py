"""Failures that workers in other languages report, without HTTP: retried, final, cancelled, repeated."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tandemq import NonRetryable, RetryPolicy, TandemQ
from tandemq.core.errors import LeaseLost
from tandemq.core.failure import MAX_MESSAGE_BYTES, MAX_TRACEBACK_BYTES, MAX_TYPE_BYTES
from tandemq.core.lifecycle import Status
from tandemq.core.task import NewRow
from tandemq.remote import Failed, Proof, Token
from tandemq.testing import FakeClock
from tests.unit.remote_bed import LOW, Bed


@pytest.fixture
def bed(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> Bed:
    return Bed(tandemq_app, tandemq_clock)


def test_a_failure_is_retried_by_the_rows_own_policy(bed: Bed) -> None:
    task_id, proof = bed.claimed(retry=RetryPolicy(backoff=[7, 70], jitter=0), max_retries=1)
    task = bed.work.fail(task_id, proof, Failed(error="boo", error_type="Boo", traceback="line 1"))
    assert (task.state, task.attempts, task.last_error, task.error_type) == ("retrying", 1, "boo", "Boo")
    assert task.run_at == bed.clock.now() + timedelta(seconds=7)
    (attempt,) = task.attempts_log
    assert (attempt.outcome, attempt.error, attempt.error_type, attempt.traceback) == ("failed", "boo", "Boo", "line 1")
    assert bed.broker.delayed(LOW) == 1

    bed.clock.advance(8)
    bed.app.broker.push(LOW, [task_id])
    (lease,) = bed.take()
    task = bed.work.fail(task_id, Proof(str(Token(lease.token, 30.0))), Failed())
    assert (task.status, task.dead_reason, task.attempts) == (Status.DEAD, "retries_exhausted", 2)
    assert task.last_error == "<Error without a message>"


def test_the_same_failure_again_is_counted_once(bed: Bed) -> None:
    for failed, state in [(Failed(error="x"), "retrying"), (Failed(error="x", retryable=False), "dead")]:
        task_id, proof = bed.claimed()
        for _ in range(3):
            task = bed.work.fail(task_id, proof, failed)
            assert (task.state, task.attempts, len(task.attempts_log)) == (state, 1, 1)
        with pytest.raises(LeaseLost):
            bed.work.complete(task_id, proof)
    assert bed.store.calls.count("finish") == 2


def test_the_worker_may_say_that_it_is_final_or_when_to_try_again(bed: Bed) -> None:
    task_id, proof = bed.claimed(max_retries=5)
    task = bed.work.fail(task_id, proof, Failed(error="no such customer", retryable=False, retry_after_s=5.0))
    assert (task.status, task.dead_reason) == (Status.DEAD, "non_retryable")

    task_id, proof = bed.claimed(retry=RetryPolicy(backoff=[7], jitter=0))
    task = bed.work.fail(task_id, proof, Failed(retry_after_s=90.0))
    assert task.run_at == bed.clock.now() + timedelta(seconds=90)

    task_id, proof = bed.claimed(max_retries=0)
    task = bed.work.fail(task_id, proof, Failed(retry_after_s=90.0))
    assert (task.status, task.dead_reason) == (Status.DEAD, "retries_exhausted")


def test_a_retry_at_once_is_due_at_once(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    task = bed.work.fail(task_id, proof, Failed(retry_after_s=0.0))
    assert task.state == "ready"
    assert bed.broker.delayed(LOW) == 1, "the mover promotes it in its next turn"


def test_the_registered_policy_gives_the_delays_but_its_exceptions_do_not_count(bed: Bed) -> None:
    def broken(attempt: int) -> float:
        raise RuntimeError

    def never(exc: BaseException, attempt: int) -> bool:
        raise AssertionError

    policies = {
        "picky": RetryPolicy(backoff=[3], jitter=0, retry_on=(KeyError,)),
        "never": RetryPolicy(backoff=[3], jitter=0, when=never, give_up_on=(NonRetryable,)),
        "broken": RetryPolicy(backoff=broken, jitter=0),
    }
    for name, policy in policies.items():
        bed.app.task(name=name, retry=policy)(lambda: None)
        (row,) = bed.store.insert([NewRow(name, "{}", "default", 0, 3)])  # without a policy of its own
        bed.broker.push(LOW, [row.id])
        (lease,) = bed.take()
        task = bed.work.fail(lease.id, Proof(lease.token), Failed(error_type="ValueError"))
        delay = (task.run_at - bed.clock.now()).total_seconds()
        assert task.state == "retrying"
        assert delay == 3 if name != "broken" else 4 <= delay <= 6


def test_a_cancel_request_turns_a_failure_into_the_end_but_a_success_wins(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    bed.app.cancel(task_id)
    for _ in range(2):
        assert bed.work.fail(task_id, proof, Failed(error="stopped")).status is Status.CANCELLED
    task_id, proof = bed.claimed()
    bed.app.cancel(task_id)
    assert bed.work.complete(task_id, proof).status is Status.SUCCEEDED


def test_texts_are_cut_to_what_is_kept(bed: Bed) -> None:
    task_id, proof = bed.claimed()
    long = "ä\x00\ud800" * 100_000
    task = bed.work.fail(task_id, proof, Failed(error=long, error_type=long, traceback=long))
    (attempt,) = task.attempts_log
    sizes = [len(text.encode()) for text in (attempt.error, attempt.error_type, attempt.traceback)]
    limits = [MAX_MESSAGE_BYTES, MAX_TYPE_BYTES, MAX_TRACEBACK_BYTES]
    assert all(limit - 12 < size <= limit for size, limit in zip(sizes, limits, strict=True))


def test_an_attempt_that_outlived_its_tasks_age_is_its_last(bed: Bed) -> None:
    task_id, proof = bed.claimed(retry=RetryPolicy(backoff=[50], jitter=0, max_age=60))
    bed.clock.advance(20)
    for _ in range(2):
        assert bed.work.fail(task_id, proof, Failed()).dead_reason == "retries_exhausted"
