"""Comparing what tandemq and the ceiling send: normalised texts, transactions, differences; and once for real."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from benchmarks.traffic.checking import check
from benchmarks.traffic.comparing import differences, of_one_batch, without_delete
from benchmarks.traffic.grouping import OTHER, by_kind, transactions
from benchmarks.traffic.normalise import redis_command, statements
from benchmarks.traffic.record import Logged, Recorded
from tests.servers import MySQLServer, RedisServer

INSERT = "INSERT INTO tandemq_tasks (queue, payload) VALUES "
LOCK = "SELECT id, payload FROM tandemq_tasks WHERE id IN (1,2) AND status = 'pending' FOR UPDATE SKIP LOCKED"
CLAIM = "UPDATE tandemq_tasks SET status = 'running', lease_token = 5 WHERE id IN (1,2)"
CLAIMS_ROW = "INSERT INTO tandemq_claims (lease_token, ids) VALUES (5, '1,2')"
FINISH = "UPDATE tandemq_tasks SET status = 'succeeded' WHERE id IN (1,2) AND status = 'running' AND lease_token = 5"
PAIRED = (
    "UPDATE tandemq_tasks SET status = 'succeeded' WHERE id IN (1,2) AND status = 'running'"
    " AND (id, lease_token) IN ((1, 5), (2, 6))"
)
DELETE = "DELETE FROM tandemq_claims WHERE lease_token = 5"
COUNT = "INSERT INTO tandemq_task_counts (queue, n) VALUES ('default', 2) ON DUPLICATE KEY UPDATE n = n + VALUES(n)"
RENEWAL = "UPDATE tandemq_claims SET expires_at = (UTC_TIMESTAMP(6) + INTERVAL 30 MICROSECOND) WHERE lease_token = 5"
BEATS = (
    'LPUSH" "q" "1"',
    'LPUSH" "q" "2" "3"',
    'BRPOP" "q" "0.5"',
    'RPOP" "q" "99"',
)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("SELECT  1 FROM t\nWHERE id IN (1,2,  3)", ["SELECT N FROM t WHERE id IN (N..)"]),
        ("SELECT a FROM t WHERE id IN (7)", ["SELECT a FROM t WHERE id IN (N..)"]),
        ("UPDATE t2 SET x = 1.5 WHERE (id, k) IN ((1, 2),(3, 4))", ["UPDATE t2 SET x = N WHERE (id, k) IN ((N, N)..)"]),
        (r"INSERT INTO t VALUES ('it\'s; (1,2)', 3)", ["INSERT INTO t VALUES ('S', N)"]),
        ("INSERT INTO t VALUES (_binary'a', NULL)", ["INSERT INTO t VALUES ('S', NULL)"]),
        ("INSERT INTO t VALUES (1,f(2)),(3,f(4)),(5,f(6))", ["INSERT INTO t VALUES (N, f(N)), more rows"]),
        (
            "INSERT INTO t VALUES (1),(2) ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
            ["INSERT INTO t VALUES (N), more rows ON DUPLICATE KEY UPDATE n = n + VALUES(n)"],
        ),
        ("UPDATE t SET status = 'running', w = 'vm-1'", ["UPDATE t SET status = 'running', w = 'S'"]),
        ("SELECT '9999-12-31 00:00:00.000000'", ["SELECT '9999-12-31 00:00:00.000000'"]),
        ("BEGIN;SELECT 1;\nCOMMIT;", ["BEGIN", "SELECT N", "COMMIT"]),
    ],
)
def test_statements_lose_values_and_lengths_and_keep_what_they_do(sent: str, expected: list[str]) -> None:
    assert statements(sent) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('1796.4 [0 127.0.0.1:5] "lpush" "t:{q}:ready:0" "1" "22" "3"', "LPUSH t:{q}:ready:0 N.."),
        ('1796.4 [0 127.0.0.1:5] "BRPOP" "a:30" "a:0" "0.500"', "BRPOP a:30 a:0 N.."),
        ('1796.4 [0 lua] "GET" "x"', ""),
        (r'1796.4 [0 127.0.0.1:5] "SET" "k" "a \"quoted\" value"', 'SET k a "quoted" value'),
    ],
)
def test_redis_commands_lose_their_numbers(line: str, expected: str) -> None:
    assert redis_command(line) == expected


def log(*entries: str, thread: int = 7, autocommit: bool = False) -> list[Logged]:
    start = [Logged(thread, "Connect", "root@localhost"), Logged(thread, "Query", f"SET AUTOCOMMIT = {autocommit:d}")]
    return [*start, *(Logged(thread, "Query", text) for text in entries)]


def test_a_transaction_ends_at_its_commit_also_between_those_of_others() -> None:
    one, two = log(LOCK, CLAIM, CLAIMS_ROW, "COMMIT"), log(FINISH, DELETE, COUNT, "COMMIT", thread=8)
    mixed = [entry for pair in zip(one, two, strict=True) for entry in pair]
    assert [(done.kind, len(done.signature)) for done in transactions(mixed)] == [("claim", 4), ("finish", 4)]


def test_with_autocommit_a_statement_stands_alone_until_begin() -> None:
    entries = log(f"{INSERT}('a', 'b')", "BEGIN", LOCK, "COMMIT", f"{INSERT}('a', 'b')", autocommit=True)
    assert [(done.kind, len(done.all)) for done in transactions(entries)] == [
        ("enqueue one", 1),
        ("claim", 3),
        ("enqueue one", 1),
    ]


def test_statements_of_one_packet_stay_together() -> None:
    (claimed,) = transactions(log(f"BEGIN;{LOCK}", f"{CLAIM};{CLAIMS_ROW};COMMIT", autocommit=True))
    assert claimed.kind == "claim"
    assert [packet.count("; ") for packet in claimed.signature] == [1, 2]


def test_set_up_renewals_and_surveys_are_left_out_but_not_inside_a_batch() -> None:
    alone = log("SELECT VERSION()", "ROLLBACK", RENEWAL, "COMMIT", "SET SESSION wait_timeout = 60")
    assert by_kind(alone) == {}
    (signature,) = by_kind(log(FINISH, RENEWAL, DELETE, COUNT, "COMMIT"))["finish"]
    assert len(signature) == 5


def test_what_nobody_expects_is_not_left_out() -> None:
    assert list(by_kind(log("DELETE FROM tandemq_tasks WHERE id = 3", "COMMIT"))) == [OTHER]


def test_a_finish_of_several_batches_and_of_a_part_are_those_of_one() -> None:
    base = next(iter(by_kind(log(FINISH, DELETE, COUNT, "COMMIT"))["finish"]))
    several = next(iter(by_kind(log(PAIRED, DELETE, DELETE, COUNT, "COMMIT"))["finish"]))
    part = next(iter(by_kind(log(FINISH, COUNT, "COMMIT"))["finish"]))
    assert of_one_batch(several) == base
    assert without_delete(base) == part


def recorded(side: str, *sql: str, redis: tuple[str, ...] = BEATS) -> Recorded:
    enqueued = (f"{INSERT}('q', 'p')", "COMMIT", f"{INSERT}('q', 'p'),('q', 'p')", "COMMIT")
    lines = [f'1.0 [0 127.0.0.1:5] "{command}' for command in redis]
    return Recorded(side, 2, log(*enqueued, *sql), lines)


BATCH = (LOCK, CLAIM, CLAIMS_ROW, "COMMIT", FINISH, DELETE, COUNT, "COMMIT")


def test_no_difference_between_equals_whatever_their_ids_and_parts() -> None:
    in_parts = (LOCK, CLAIM, CLAIMS_ROW, "COMMIT", FINISH, COUNT, "COMMIT", FINISH, DELETE, COUNT, "COMMIT", RENEWAL)
    assert differences(recorded("tandemq", *in_parts), recorded("ceiling", *BATCH)) == []


def test_a_statement_more_is_shown_and_so_is_a_packet_more() -> None:
    more = (LOCK, "SELECT 1 FROM tandemq_queues", CLAIM, CLAIMS_ROW, "COMMIT", FINISH, DELETE, COUNT, "COMMIT")
    assert differences(recorded("tandemq", *more), recorded("ceiling", *BATCH)) == [
        "SQL, claim: tandemq sends 5 packets, the ceiling 4 (seen 1 times):",
        "  - only tandemq: SELECT N FROM tandemq_queues",
    ]
    joined = (LOCK, f"{CLAIM};{CLAIMS_ROW}", "COMMIT", FINISH, DELETE, COUNT, "COMMIT")
    found = differences(recorded("tandemq", *joined), recorded("ceiling", *BATCH))
    assert found[0] == "SQL, claim: tandemq sends 3 packets, the ceiling 4 (seen 1 times):"


def test_a_transaction_that_one_side_never_sends_is_shown() -> None:
    assert differences(recorded("tandemq", *BATCH), recorded("ceiling", *BATCH[:4])) == [
        "SQL, finish: ceiling sent no such transaction",
        "SQL, finish: tandemq sends 4 packets, the ceiling 0 (seen 1 times):",
        *(f"  - only tandemq: {one}" for packet in BATCH[4:] for one in statements(packet)),
    ]


def test_redis_commands_are_compared_per_call_and_others_by_their_presence() -> None:
    twice = (*BEATS, 'SADD" "queues" "q"', 'SADD" "queues" "q"')
    found = differences(recorded("tandemq", *BATCH, redis=twice), recorded("ceiling", *BATCH))
    assert found == ["Redis, per call or batch: tandemq 1, ceiling 0: SADD queues q"]
    with_lua = (*BEATS, 'EVALSHA" "abc" "2" "t:{q}:delayed:0" "t:{q}:ready:0"', 'SMEMBERS" "queues"')
    assert differences(recorded("tandemq", *BATCH, redis=with_lua), recorded("ceiling", *BATCH)) == []


def test_the_ceiling_really_sends_what_tandemq_sends(
    own_mysql: Callable[..., MySQLServer], own_redis: Callable[..., RedisServer]
) -> None:
    servers = SimpleNamespace(mysql=own_mysql(), redis=own_redis())
    found, (ours, _) = check(servers, before=(("single", 5), ("bulk", 1000)))  # type: ignore[arg-type]
    assert found == []
    assert set(by_kind(ours.sql)) == {"enqueue one", "enqueue many", "claim", "finish"}
