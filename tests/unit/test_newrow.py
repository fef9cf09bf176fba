"""NewTask -> NewRow: what is stored, and what is refused before anything is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from tandemq.core.errors import InvalidTask, InvalidType, PayloadTooLarge
from tandemq.core.retry import Constant, Exponential, QueuePolicy, RetryPolicy, policy_of
from tandemq.core.task import NewRow, NewTask
from tandemq.newrow import Checks
from tandemq.registry import RegisteredTask, TaskOptions

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CHECKS = Checks(NOW, 1000, {"patient": QueuePolicy(9, {"jitter": 0.0, "max_age": 60})})


def process(**payload: Any) -> None: ...


def task(**options: Any) -> RegisteredTask:
    return RegisteredTask.of(process, TaskOptions(name="t", **options))


def row(payload: Any = None, *, registered: RegisteredTask | None = None, **options: Any) -> NewRow:
    return CHECKS.row(NewTask("t", {} if payload is None else payload, **options), registered)


def test_a_task_of_an_unknown_type_gets_the_defaults() -> None:
    assert row({"a": 1}) == NewRow("t", '{"a":1}', "default", 0, 3)


def test_what_the_enqueue_says_wins_over_the_registration() -> None:
    registered = task(queue="q", priority="high", max_retries=5)

    assert row(registered=registered) == NewRow("t", "{}", "q", 20, 5)
    assert row(registered=registered, queue="p", priority=-3, max_retries=0) == NewRow("t", "{}", "p", -3, 0)


@pytest.mark.parametrize(
    ("given", "registered", "queue", "expected"),
    [
        (0, {"max_retries": 5}, "patient", 0),
        (None, {"max_retries": 5, "retry": RetryPolicy(max_retries=6)}, "patient", 5),
        (None, {"retry": RetryPolicy(max_retries=6)}, "patient", 6),
        (None, {}, "patient", 9),
        (None, None, "patient", 9),
        (None, {}, "other", 3),
    ],
)
def test_max_retries_is_decided_by_enqueue_task_policy_queue_and_then_3(
    given: int | None, registered: dict[str, Any] | None, queue: str, expected: int
) -> None:
    known = None if registered is None else task(**registered)

    assert row(registered=known, max_retries=given, queue=queue).max_retries == expected


def options_of(registered: RegisteredTask | None = None, **given: Any) -> dict[str, Any]:
    text = row(registered=registered, **given).options
    return json.loads(text) if text else {}


def test_only_what_differs_from_the_defaults_is_stored_as_options() -> None:
    assert row(registered=task(timeout=5, retry=RetryPolicy(max_retries=1))).options == ""
    assert options_of(timeout=None) == {"timeout": None}
    assert options_of(timeout=2) == {"timeout": 2.0}
    assert options_of(backoff=7) == {"backoff": {"kind": "constant", "delay": 7.0}}
    assert options_of(backoff=[1, 2]) == {"backoff": {"kind": "delays", "delays": [1.0, 2.0]}}


def test_a_tasks_own_backoff_travels_for_those_who_judge_without_handlers() -> None:
    registered = task(retry=RetryPolicy(backoff=Constant(60), jitter=0.5))

    assert options_of(registered) == {"backoff": {"kind": "constant", "delay": 60.0}, "jitter": 0.5}
    assert options_of(registered, backoff=1) == {"backoff": {"kind": "constant", "delay": 1.0}, "jitter": 0.5}
    assert options_of(task(retry=RetryPolicy(backoff=Exponential()))) == {}
    assert options_of(task(retry=RetryPolicy(backoff=lambda attempt: attempt))) == {}


@pytest.mark.parametrize(
    ("backoff", "error"),
    [
        (lambda _n: 1, InvalidType),
        ("5", InvalidType),
        (True, InvalidType),
        ([], InvalidTask),
        (-1, InvalidTask),
        ([-1], InvalidTask),
    ],
)
def test_odd_backoffs_of_one_enqueue_are_refused(backoff: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="backoff"):
        row(backoff=backoff)


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan")])
def test_odd_time_limits_are_refused(timeout: Any) -> None:
    with pytest.raises(InvalidTask, match="timeout"):
        row(timeout=timeout)


# The payload


@pytest.mark.parametrize("payload", [[], "x", 5, ()])
def test_a_payload_must_be_an_object(payload: Any) -> None:
    with pytest.raises(InvalidType, match="payload must be a JSON object"):
        row(payload)


def test_any_mapping_will_do() -> None:
    assert row(MappingProxyType({"a": 1})).payload == '{"a":1}'


@pytest.mark.parametrize("text", ["x", "é", "\U0001f600"])
def test_the_limit_counts_bytes_of_utf8_and_is_named(text: str) -> None:
    frame = len('{"t":""}')
    fits = (1000 - frame) // len(text.encode())
    exact = text * fits + "x" * (1000 - frame - fits * len(text.encode()))

    assert len(row({"t": exact}).payload.encode()) == 1000
    with pytest.raises(PayloadTooLarge, match=r"1001 bytes .* limit is 1000"):
        row({"t": exact + "x"})


def test_an_encoder_is_used() -> None:
    checks = replace(CHECKS, encoder=lambda v: sorted(v) if isinstance(v, set) else v)

    assert checks.row(NewTask("t", {"s": {2, 1}}), None).payload == '{"s":[1,2]}'


# When


def test_a_delay_is_left_to_the_databases_clock() -> None:
    assert row(delay=30).delay_s == 30
    assert row(delay=timedelta(minutes=1)).delay_s == 60
    assert row(delay=0).delay_s == 0
    assert row(delay=30).run_at is None


@pytest.mark.scenario
@pytest.mark.parametrize("delay", [-1e9, 1e308, float("nan"), "5", True, 10**400, 3e11], ids=lambda v: str(v)[:9])
def test_odd_delays_are_refused(delay: Any) -> None:
    with pytest.raises(InvalidTask, match="delay"):
        row(delay=delay)


@pytest.mark.scenario
@pytest.mark.parametrize(
    ("run_at", "stored"),
    [
        (datetime(300, 1, 1, tzinfo=UTC), None),
        (datetime(1018, 1, 1, tzinfo=UTC), None),
        (datetime(1970, 1, 1, tzinfo=UTC), None),
        (datetime(2029, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)),
        (datetime(2040, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_no_server_could_store_is_now_and_the_past_is_the_databases_to_judge(
    run_at: datetime, stored: datetime | None
) -> None:
    assert row(run_at=run_at).run_at == stored


@pytest.mark.scenario
@pytest.mark.parametrize(
    "run_at", [datetime(9999, 12, 31, tzinfo=UTC), datetime(2030, 1, 1), "2030-01-01T00:00:00Z", 5]
)
def test_odd_run_ats_are_refused(run_at: Any) -> None:
    with pytest.raises(InvalidTask, match="run_at"):
        row(run_at=run_at)


def test_delay_and_run_at_exclude_each_other() -> None:
    with pytest.raises(InvalidTask, match="exclude each other"):
        row(delay=0, run_at=NOW)


@pytest.mark.parametrize(
    ("options", "expires_s", "expires_at"),
    [
        ({"expires": 10}, 10, None),
        ({"expires": 10, "delay": 9}, 10, None),
        ({"expires": timedelta(hours=1), "run_at": NOW + timedelta(minutes=59)}, 3600, None),
        ({"expires": NOW + timedelta(seconds=1)}, None, NOW + timedelta(seconds=1)),
        ({"expires": NOW + timedelta(seconds=1), "run_at": NOW - timedelta(days=1)}, None, NOW + timedelta(seconds=1)),
    ],
)
def test_an_end_after_the_start_is_stored(
    options: dict[str, Any], expires_s: float | None, expires_at: datetime | None
) -> None:
    stored = row(**options)

    assert (stored.expires_s, stored.expires_at) == (expires_s, expires_at)


@pytest.mark.parametrize(
    "options",
    [
        {"expires": 0},
        {"expires": -1},
        {"expires": 1e308},
        {"expires": "5"},
        {"expires": 10, "delay": 10},
        {"expires": 10, "run_at": NOW + timedelta(seconds=10)},
        {"expires": NOW},
        {"expires": NOW - timedelta(days=1)},
        {"expires": NOW + timedelta(seconds=5), "delay": 6},
        {"expires": NOW + timedelta(seconds=5), "run_at": NOW + timedelta(seconds=6)},
        {"expires": datetime(2031, 1, 1)},
    ],
)
def test_an_end_that_is_not_after_the_start_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="expires"):
        row(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "a b"},
        {"queue": ""},
        {"priority": "urgent"},
        {"max_retries": -1},
        {"max_retries": "3"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
        {"idempotency_key": 5},
    ],
)
def test_every_other_value_is_checked_too(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match=next(iter(options))):
        row(**options)


@pytest.mark.parametrize("name", ["", "a b", None, 5])
def test_the_type_is_checked(name: Any) -> None:
    with pytest.raises(InvalidTask, match="type"):
        CHECKS.row(NewTask(name, {}), None)


def options(new: NewTask, **given: Any) -> dict[str, Any]:
    text = CHECKS.row(new, task(**given) if given else None).options
    return json.loads(text) if text else {}


def test_the_policy_of_an_enqueue_travels_whole_and_wins() -> None:
    of_task = RetryPolicy(backoff=[7], jitter=0, max_age=99, seed=3)
    row = CHECKS.row(NewTask("t", {}, queue="patient", retry=RetryPolicy(max_retries=1)), task(retry=of_task))
    assert row.max_retries == 1
    assert policy_of(row.options, of_task) == replace(
        of_task, backoff=Exponential(), jitter=0.2, max_age=None, seed=None
    )


def test_then_the_tasks_policy_then_the_queues() -> None:
    new = NewTask("t", {}, queue="patient")
    assert options(new, retry=RetryPolicy(jitter=0.5)) == {"jitter": 0.5, "max_age": 60}
    assert options(new) == {"jitter": 0.0, "max_age": 60}
    assert CHECKS.row(new, None).max_retries == 9
    assert options(NewTask("t", {}), retry=RetryPolicy(jitter=0.5)) == {"jitter": 0.5}


def test_backoff_replaces_the_delays_alone() -> None:
    new = NewTask("t", {}, backoff=[1], retry=RetryPolicy(jitter="full"))
    assert options(new) == {
        "backoff": {"kind": "delays", "delays": [1.0]},
        "jitter": "full",
        "max_age": None,
        "seed": None,
    }


@pytest.mark.parametrize(
    ("retry", "names"),
    [
        (RetryPolicy(when=lambda e, n: True), "when"),
        (RetryPolicy(retry_on=(OSError,), give_up_on=(KeyError,)), "retry_on, give_up_on"),
        (RetryPolicy(backoff=lambda n: 1.0), "backoff"),
        ("fast", "RetryPolicy, not str"),
    ],
)
def test_code_does_not_travel_with_a_row(retry: Any, names: str) -> None:
    with pytest.raises(InvalidTask, match=names) as refused:
        CHECKS.row(NewTask("t", {}, retry=retry), None)
    assert refused.value.field == "retry"


def test_a_queues_backoff_does_not_replace_one_that_is_code() -> None:
    slow = Checks(
        NOW, 1000, {"slow": QueuePolicy(None, {"backoff": {"kind": "constant", "delay": 600.0}, "jitter": 0.5})}
    )
    of_task = RetryPolicy(backoff=lambda n: 1.0)
    row = slow.row(NewTask("t", {}, queue="slow"), task(retry=of_task))
    assert policy_of(row.options, of_task) == replace(of_task, jitter=0.5)
