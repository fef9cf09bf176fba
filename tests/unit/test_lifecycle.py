"""The state machine: MOVES against a model, decide against a table, and counting attempts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.errors import NonRetryable
from tandemq.core.lifecycle import (
    ENDED,
    FINAL,
    MOVES,
    Attempt,
    Bury,
    DeadReason,
    Event,
    Expired,
    Failure,
    Interrupted,
    Invalid,
    Lost,
    Raised,
    Release,
    RetryIn,
    Returned,
    Snoozed,
    SnoozeIn,
    Status,
    Succeed,
    TimedOut,
    decide,
    diagram,
)
from tandemq.core.retry import MAX_DELAY_S, RetryPolicy

WHY = Failure("Boom", "it broke")
STEADY = RetryPolicy(backoff=10, jitter=0)
#: The life of a task as the design draws it, written down a second time.
ARROWS = {
    (Status.PENDING, Status.RUNNING),
    (Status.RUNNING, Status.SUCCEEDED),
    (Status.RUNNING, Status.PENDING),
    (Status.RUNNING, Status.DEAD),
    (Status.RUNNING, Status.CANCELLED),
    (Status.PENDING, Status.CANCELLED),
    (Status.PENDING, Status.DEAD),
    (Status.DEAD, Status.PENDING),
    (Status.CANCELLED, Status.PENDING),
}


def judge(outcome: Any, number: int = 1, max_retries: int = 3, policy: RetryPolicy = STEADY) -> Any:
    return decide(Attempt(number, max_retries), outcome, policy, Random(1))


def test_the_moves_are_the_arrows_of_the_design() -> None:
    assert {(source, move.target) for move in MOVES.values() for source in move.sources} == ARROWS


def test_every_event_has_a_move_and_nothing_leaves_succeeded() -> None:
    assert set(MOVES) == set(Event)
    assert not any(Status.SUCCEEDED in move.sources for move in MOVES.values())


def test_open_rows_have_the_end_code_0_and_final_ones_codes_of_their_own() -> None:
    assert {Status.PENDING, Status.RUNNING} == {s for s, code in ENDED.items() if code == 0}
    assert len({ENDED[s] for s in FINAL}) == len(FINAL) == 3


@given(st.lists(st.sampled_from(list(Event))))
def test_any_order_of_events_keeps_to_the_arrows(events: list[Event]) -> None:
    status = Status.PENDING
    for event in events:
        move = MOVES[event]
        if status in move.sources:
            assert (status, move.target) in ARROWS
            status = move.target
    assert status in Status


def test_the_diagram_shows_every_arrow_once() -> None:
    drawn = diagram().splitlines()

    assert drawn[0] == "stateDiagram-v2"
    assert "    [*] --> pending: enqueue" in drawn
    for event, move in MOVES.items():
        for source in move.sources:
            assert drawn.count(f"    {source} --> {move.target}: {event}") == 1
    assert sum("--> [*]" in line for line in drawn) == len(FINAL)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Returned("1", "note"), Succeed("1", "note")),
        (Snoozed(7), SnoozeIn(7)),
        (Snoozed(-7), SnoozeIn(0)),
        (Snoozed(float("nan")), SnoozeIn(0)),
        (Snoozed(1e308), SnoozeIn(MAX_DELAY_S)),
        (Invalid(WHY), Bury(DeadReason.VALIDATION, WHY, "invalid")),
        (Expired(WHY), Bury(DeadReason.EXPIRED, WHY, "expired")),
        (Raised(ValueError(), WHY), RetryIn(10, WHY)),
        (Raised(ValueError(), WHY, 3), RetryIn(3, WHY)),
        (Raised(ValueError(), WHY, float("inf")), RetryIn(MAX_DELAY_S, WHY)),
        (Raised(NonRetryable(), WHY), Bury(DeadReason.NON_RETRYABLE, WHY)),
        (TimedOut(WHY), RetryIn(10, WHY, "timeout")),
        (Lost(WHY), RetryIn(10, WHY, "lease_lost")),
        (Interrupted(True, WHY), Release(WHY)),
        (Interrupted(False, WHY), Release()),
    ],
)
def test_what_is_done_about_an_attempt_with_retries_left(outcome: Any, verdict: Any) -> None:
    assert judge(outcome) == verdict


@pytest.mark.parametrize(
    ("outcome", "reason", "kind"),
    [
        (Raised(ValueError(), WHY), DeadReason.RETRIES_EXHAUSTED, "failed"),
        (Raised(ValueError(), WHY, 3), DeadReason.RETRIES_EXHAUSTED, "failed"),
        (Raised(NonRetryable(), WHY), DeadReason.NON_RETRYABLE, "failed"),
        (TimedOut(WHY), DeadReason.TIMEOUT, "timeout"),
        (Lost(WHY), DeadReason.LEASE_LOST, "lease_lost"),
    ],
)
def test_the_last_attempt_ends_dead_with_its_own_reason(outcome: Any, reason: DeadReason, kind: str) -> None:
    assert judge(outcome, number=4) == Bury(reason, WHY, kind)


def test_a_last_attempt_is_handed_back_by_a_deploy_and_may_snooze() -> None:
    assert judge(Interrupted(True, WHY), number=4) == Release(WHY)
    assert judge(Snoozed(5), number=4) == SnoozeIn(5)


@pytest.mark.parametrize(
    "outcome", [Raised(OSError(), WHY), Raised(OSError(), WHY, 1), TimedOut(WHY), Lost(WHY), Interrupted(True, WHY)]
)
def test_max_retries_0_is_never_begun_again_whatever_ends_it(outcome: Any) -> None:
    assert isinstance(judge(outcome, number=1, max_retries=0), Bury)


def test_max_retries_0_that_had_not_begun_is_handed_back() -> None:
    assert judge(Interrupted(False, WHY), max_retries=0) == Release()


@pytest.mark.parametrize("max_retries", [0, 1, 2, 24, 299])
def test_an_always_failing_task_runs_exactly_one_time_more_than_its_retries(max_retries: int) -> None:
    attempt = 0
    verdict: Any = None
    while not isinstance(verdict, Bury):
        attempt += 1
        verdict = judge(Raised(ValueError(), WHY), number=attempt, max_retries=max_retries)

    assert attempt == 1 + max_retries
    assert verdict.reason is DeadReason.RETRIES_EXHAUSTED
