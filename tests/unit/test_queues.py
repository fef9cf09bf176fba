"""``app.queues`` and ``tandemq queue``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tandemq import RetryPolicy, TandemQ
from tandemq.cli.queue import BackoffType
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.retry import Constant, Delays, Exponential, Linear, QueuePolicy, policy_of
from tandemq.testing import FakeClock


def test_tasks_enqueued_from_now_on_carry_it(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    before = tandemq_app.enqueue("t", {}, queue="mail")
    tandemq_app.queues.set_policy(
        "mail", RetryPolicy(max_retries=9, backoff=[1, 2], max_age=60), reason="slow", who="ada"
    )
    tandemq_clock.advance(10)
    after = tandemq_app.get(tandemq_app.enqueue("t", {}, queue="mail").id)
    other = tandemq_app.get(tandemq_app.enqueue("t", {}).id)
    kept = tandemq_app.get(before.id)
    assert after is not None
    assert other is not None
    assert kept is not None
    assert (after.max_retries, other.max_retries, kept.max_retries) == (9, 3, 3)
    assert policy_of(after.options) == RetryPolicy(backoff=[1, 2], max_age=60)
    (record,) = tandemq_app.audit().items
    assert (record.who, record.reason, record.details["queue"]) == ("ada", "slow", "mail")


def test_it_can_be_taken_back(tandemq_app: TandemQ) -> None:
    tandemq_app.queues.set_policy("mail", RetryPolicy(max_retries=9))
    assert tandemq_app.queues.policies() == {"mail": QueuePolicy(9)}
    tandemq_app.queues.set_policy("mail", None)
    assert tandemq_app.queues.policies() == {}


def test_code_and_nonsense_are_refused(tandemq_app: TandemQ) -> None:
    with pytest.raises(InvalidTask, match="when, give_up_on"):
        tandemq_app.queues.set_policy("mail", RetryPolicy(when=lambda e, n: True, give_up_on=(OSError,)))
    with pytest.raises(InvalidType, match="RetryPolicy, not int"):
        tandemq_app.queues.set_policy("mail", 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="no queue"):
        tandemq_app.queues.set_policy("no queue", None)
    assert tandemq_app.queues.policies() == {}


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("1,5,15", Delays((1.0, 5.0, 15.0))),
        ("30", Delays((30.0,))),
        ("exponential:1,3,60", Exponential(1, 3, 60)),
        ("exponential:", Exponential()),
        ("linear:1,2", Linear(1, 2)),
        ("constant:7", Constant(7)),
    ],
)
def test_backoffs_can_be_written_on_a_command_line(text: str, backoff: object) -> None:
    assert BackoffType().convert(text, None, None) == backoff


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "mail"],
        ["set", "mail", "--clear", "--max-retries", "3"],
        ["set", "mail", "--backoff", "soon"],
        ["set", "mail", "--backoff", "square:1"],
        ["set", "mail", "--backoff", "1,-5"],
        ["set", "mail", "--backoff", ""],
        ["set", "mail", "--jitter", "2"],
        ["set", "mail", "--max-retries", "-1"],
        ["set", "bad name", "--clear"],
    ],
)
def test_bad_input_is_exit_code_2(tandemq_app: TandemQ, arguments: list[str]) -> None:
    from tandemq.cli.entry import tandemq_command

    done = CliRunner().invoke(tandemq_command, ["queue", *arguments])
    assert done.exit_code == 2, done.output


def test_the_verbs(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandemq.cli.entry import tandemq_command

    monkeypatch.chdir(str(tmp_path))
    for name in ("DATABASE_URL", "REDIS_URL", "EMBEDDED", "APP"):
        monkeypatch.delenv(f"TANDEMQ_{name}", raising=False)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(tandemq_command, ["queue", *arguments], standalone_mode=False)
        assert done.exception is None, done.output
        return done.output

    assert "nothing is decided" in run("show")
    said = run("set", "mail", "--max-retries", "2", "--backoff", "1,5", "--jitter", "full", "--max-age", "2h")
    assert "queue mail: max_retries 2" in said
    (item,) = json.loads(run("show", "--json"))["items"]
    assert item == {
        "queue": "mail",
        "max_retries": 2,
        "backoff": {"kind": "delays", "delays": [1.0, 5.0]},
        "jitter": "full",
        "max_age": 7200.0,
    }
    assert "mail" in run("show")
    assert "nothing decided" in run("set", "mail", "--clear")
