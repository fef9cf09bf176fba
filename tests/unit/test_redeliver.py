"""What follows a move in MySQL, and how a lost row is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

import pytest

from tandemq.broker.protocol import Broker
from tandemq.core.codec import encode
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.lifecycle import Bury, DeadReason, Event, RetryIn, Status
from tandemq.core.retry import Constant, Exponential, RetryPolicy, backoff_spec, policy_of
from tandemq.core.task import Lease, Level
from tandemq.redeliver import dispatch, lost_judge
from tandemq.store.answers import Moved

A, B = Level("a", 0), Level("b", 10)


class Recorder:
    def __init__(self, fails_at: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self.fails_at = fails_at

    def _note(self, *call: object) -> None:
        if call[0] == self.fails_at:
            raise BrokerUnavailable("away")
        self.calls.append(call)

    def push(self, level: Level, ids: Sequence[int]) -> None:
        self._note("push", level, list(ids))

    def push_next(self, level: Level, ids: Sequence[int]) -> None:
        self._note("push_next", level, list(ids))

    def delay(self, level: Level, due: Mapping[int, int]) -> None:
        self._note("delay", level, dict(due))


def moved(task_id: int, level: Level, event: Event, status: Status, due_ms: int | None = None) -> Moved:
    return Moved(task_id, level, "noop", event, status, due_ms)


MOVES = [
    moved(1, A, Event.RETRY, Status.PENDING, 5000),
    moved(2, A, Event.RELEASE, Status.PENDING),
    moved(3, B, Event.RELEASE, Status.PENDING),
    moved(4, A, Event.BURY, Status.DEAD),
    moved(5, A, Event.RELEASE, Status.PENDING),
    moved(6, A, Event.CANCEL_RUNNING, Status.CANCELLED),
    moved(7, A, Event.RETRY, Status.PENDING, 6000),
    moved(8, A, Event.REPLAY, Status.PENDING),
    moved(9, A, Event.RELEASE, Status.CANCELLED),
]


def test_each_goes_where_it_belongs_in_the_given_order_and_what_ended_goes_nowhere() -> None:
    broker = Recorder()

    assert dispatch(cast(Broker, broker), MOVES)

    assert broker.calls == [
        ("push_next", A, [2, 5]),
        ("push_next", B, [3]),
        ("push", A, [8]),
        ("delay", A, {1: 5000, 7: 6000}),
    ]


def test_redis_away_is_told_and_not_asked_again() -> None:
    broker = Recorder(fails_at="push")

    assert not dispatch(cast(Broker, broker), MOVES)

    assert [call[0] for call in broker.calls] == ["push_next", "push_next"]


def lease(attempt: int, max_retries: int, options: str = "") -> Lease:
    return Lease(1, "a", 0, "noop", "{}", options, attempt, max_retries, 0, 1, 99)


def test_a_lost_row_is_judged_by_itself_alone() -> None:
    judge = lost_judge(Random(1), "gone")

    again = judge(lease(1, 3))
    last = judge(lease(1, 0))

    assert isinstance(again, RetryIn)
    assert 4 <= again.delay_s <= 6
    assert isinstance(last, Bury)
    assert (last.reason, last.failure.error_type, last.failure.message) == (DeadReason.LEASE_LOST, "LeaseLost", "gone")


def test_the_rows_backoff_wins_over_the_policys() -> None:
    options = encode({"backoff": backoff_spec(Constant(7.0)), "timeout": 3}, "options")

    assert policy_of(options, RetryPolicy(jitter=0.0)) == RetryPolicy(jitter=0.0, backoff=Constant(7.0))
    assert policy_of("", RetryPolicy(backoff=3)) == RetryPolicy(backoff=3)
    assert policy_of("") == RetryPolicy()


@pytest.mark.parametrize(
    "options",
    [
        "x",
        "null",
        "[]",
        "3",
        "{}",
        '{"backoff": null}',
        '{"backoff": 5}',
        '{"backoff": []}',
        '{"backoff": {"kind": "?"}}',
        '{"backoff": {"kind": "constant", "delay": -1}}',
        '{"backoff": {"kind": "constant", "delay": NaN}}',
        '{"backoff": {"kind": "constant", "delay": 1' + "0" * 400 + "}}",
        '{"backoff": {"kind": "delays", "delays": 5}}',
        "[" * 100_000,
    ],
)
def test_options_that_make_no_sense_give_the_default_and_never_raise(options: str) -> None:
    assert policy_of(options).backoff == Exponential()
