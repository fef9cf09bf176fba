"""What every broker must do, whatever server is behind it. Adapters inherit from ``BrokerContract``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.waiting import eventually

from tandemq.broker.client import Pools
from tandemq.broker.keys import Keys
from tandemq.broker.popping import LEFT_OUT_S
from tandemq.broker.protocol import Window
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.task import Level

LOW, MEDIUM, HIGH = (Level("default", p) for p in (0, 10, 20))
OTHER = Level("other", 10)


class HandClock:
    """Monotonic time that moves only by hand, or by the sleeps of the code under test (which are kept)."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> Any:
        raise AssertionError("the broker does not look at the wall clock")

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class BrokerContract:
    """Adapters give the fixtures ``pools``, ``raw`` (a plain client of the same server) and ``namespace``."""

    @pytest.fixture
    def clock(self) -> HandClock:
        return HandClock()

    @pytest.fixture
    def keys(self, namespace: str) -> Keys:
        return Keys(namespace)

    @pytest.fixture
    def broker(self, pools: Pools, keys: Keys, clock: HandClock) -> RedisBroker:
        return RedisBroker(pools, keys, clock)

    # Order

    def test_ids_come_out_in_the_order_they_were_pushed(self, broker: RedisBroker) -> None:
        broker.push(MEDIUM, [3, 1])
        broker.push(MEDIUM, [2])

        popped = broker.pop([MEDIUM], limit=10, wait_s=1)

        assert (popped.level, popped.ids) == (MEDIUM, (3, 1, 2))

    def test_ids_pushed_next_come_out_first_and_in_their_order(self, broker: RedisBroker) -> None:
        broker.push(MEDIUM, [1, 2])
        broker.push_next(MEDIUM, [8, 9])

        assert broker.pop([MEDIUM], limit=10, wait_s=1).ids == (8, 9, 1, 2)

    @pytest.mark.parametrize("verb", ["push", "push_next"])
    def test_a_push_of_thousands_keeps_the_order(self, broker: RedisBroker, verb: str) -> None:
        ids = tuple(range(1, 2502))
        getattr(broker, verb)(MEDIUM, ids)

        assert broker.pop([MEDIUM], limit=5000, wait_s=1).ids == ids

    def test_a_pop_takes_at_most_its_limit_and_leaves_the_rest_in_order(self, broker: RedisBroker) -> None:
        broker.push(MEDIUM, [1, 2, 3, 4])

        assert [broker.pop([MEDIUM], limit=n, wait_s=1).ids for n in (1, 2, 5)] == [(1,), (2, 3), (4,)]

    @pytest.mark.parametrize("wait_s", [0, 1])
    def test_a_pop_serves_the_levels_in_the_given_order_and_one_at_a_time(
        self, broker: RedisBroker, wait_s: float
    ) -> None:
        broker.push(LOW, [1])
        broker.push(HIGH, [2])
        broker.push(OTHER, [3])
        order = [HIGH, OTHER, LOW]

        popped = [broker.pop(order, limit=10, wait_s=wait_s) for _ in order]

        assert [(p.level, p.ids) for p in popped] == [(HIGH, (2,)), (OTHER, (3,)), (LOW, (1,))]

    def test_a_pop_of_nothing_waits_no_longer_than_asked(self, broker: RedisBroker) -> None:
        assert broker.pop([MEDIUM], limit=5, wait_s=0.05).level is None
        assert broker.pop([MEDIUM], limit=5, wait_s=0).level is None
        assert broker.pop([], limit=5, wait_s=0).level is None

    def test_a_pop_with_no_room_takes_nothing(self, broker: RedisBroker) -> None:
        broker.push(MEDIUM, [1])

        assert broker.pop([MEDIUM], limit=0, wait_s=1).ids == ()
        assert broker.depth(MEDIUM) == 1

    def test_a_waiting_pop_is_woken_by_a_push(self, broker: RedisBroker) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(eventually, lambda: broker.pop([HIGH, MEDIUM], limit=5, wait_s=5).ids)
            broker.push(MEDIUM, [7])

            assert waiting.result() == (7,)

    def test_racing_pops_take_every_id_once(self, broker: RedisBroker) -> None:
        ids = range(1, 1001)

        def drain() -> list[int]:
            taken: list[int] = []
            while popped := broker.pop([HIGH, MEDIUM], limit=7, wait_s=0.05).ids:
                taken += popped
            return taken

        broker.push(MEDIUM, ids[:500])
        broker.push(HIGH, ids[500:])
        with ThreadPoolExecutor(8) as pool:
            taken = [id_ for part in pool.map(lambda _: drain(), range(8)) for id_ in part]

        assert sorted(taken) == list(ids)

    # Registering and looking

    def test_pushing_and_delaying_register_queue_and_level(self, broker: RedisBroker) -> None:
        broker.push(Level("a", 5), [1])
        broker.push_next(Level("b", -7), [1])
        broker.delay(Level("c", 1000), {1: 1})
        broker.register([Level("d", 1), Level("d", 2), Level("e", 10)])

        assert broker.queues() == {"a", "b", "c", "d", "e"}
        labelled = {0, 10, 20, 30}
        assert [broker.levels(q) - labelled for q in "abcde"] == [{5}, {-7}, {1000}, {1, 2}, set()]
        assert broker.levels("nobody") == labelled

    def test_doing_nothing_touches_nothing(self, broker: RedisBroker, raw: redis.Redis) -> None:
        broker.push(MEDIUM, [])
        broker.push_next(MEDIUM, [])
        broker.delay(MEDIUM, {})
        broker.register([])

        assert raw.keys("*") == []

    def test_every_key_is_one_of_the_documented_ones(
        self, broker: RedisBroker, raw: redis.Redis, namespace: str
    ) -> None:
        broker.push(MEDIUM, [1])
        broker.delay(MEDIUM, {2: 5})
        broker.mark_install("i")
        broker.advance_generation("default", old=None, new="i:1:ready")

        head = f"{namespace}:{{default}}:"
        assert {key.decode() for key in raw.keys("*")} == {
            f"{head}ready:10",
            f"{head}delayed:10",
            f"{head}levels",
            f"{head}generation",
            f"{namespace}:queues",
            f"{namespace}:generation",
        }

    def test_junk_in_levels_and_queues_is_passed_over(self, broker: RedisBroker, raw: redis.Redis, keys: Keys) -> None:
        raw.sadd(keys.levels("default"), "x", "1001", "-1001", "007", "", "\u0663", "7")
        raw.sadd(keys.queues, "a b", "", "q" * 65, b"\xff", "fine")

        assert broker.levels("default") == {0, 7, 10, 20, 30}
        assert broker.queues() == {"fine"}

    def test_depths_and_the_window_show_the_tail(self, broker: RedisBroker) -> None:
        broker.push(MEDIUM, range(1, 11))
        broker.delay(MEDIUM, {20: 1, 21: 2})

        assert (broker.depth(MEDIUM), broker.delayed(MEDIUM)) == (10, 2)
        assert broker.window(MEDIUM, 3) == Window(frozenset({1, 2, 3}), 10)
        assert broker.window(MEDIUM, 100) == Window(frozenset(range(1, 11)), 10)
        assert broker.window(HIGH, 3) == Window()

    # Delayed ids

    def test_promoting_moves_what_is_due_in_order_of_due_time(self, broker: RedisBroker) -> None:
        broker.delay(MEDIUM, {5: 1001, 4: 1000, 6: 1002, 7: 999})

        assert broker.promote(MEDIUM, now_ms=1001, limit=100) == 3
        assert broker.pop([MEDIUM], limit=9, wait_s=0).ids == (7, 4, 5)
        assert broker.delayed(MEDIUM) == 1

    def test_promoting_moves_at_most_the_limit_and_nothing_early(self, broker: RedisBroker) -> None:
        broker.delay(MEDIUM, {1: 10, 2: 20, 3: 30})

        moved = [broker.promote(MEDIUM, now_ms=now, limit=1) for now in (9, 30, 30, 30, 30)]

        assert moved == [0, 1, 1, 1, 0]

    def test_delaying_again_moves_the_due_time(self, broker: RedisBroker) -> None:
        broker.delay(MEDIUM, {1: 10})
        broker.delay(MEDIUM, {1: 50})

        assert broker.promote(MEDIUM, now_ms=49, limit=9) == 0
        assert broker.promote(MEDIUM, now_ms=50, limit=9) == 1

    def test_thousands_are_delayed_and_promoted_whole_also_with_the_largest_id(self, broker: RedisBroker) -> None:
        ids = [*range(1, 10_000), 2**63 - 1]
        broker.delay(MEDIUM, {id_: 10_000_000_000_000 + n for n, id_ in enumerate(ids)})

        moved = [broker.promote(MEDIUM, now_ms=10_000_000_999_999, limit=100_000) for _ in range(4)]

        assert (sum(moved), moved[-1]) == (10_000, 0)
        assert list(broker.pop([MEDIUM], limit=10_000, wait_s=0).ids) == ids

    def test_six_racing_movers_move_every_id_once(self, broker: RedisBroker) -> None:
        broker.delay(MEDIUM, {id_: id_ for id_ in range(1, 2001)})
        start = threading.Barrier(6)

        def move() -> int:
            start.wait()
            moved = 0
            while some := broker.promote(MEDIUM, now_ms=9999, limit=13):
                moved += some
            return moved

        with ThreadPoolExecutor(6) as pool:
            moved = sum(pool.map(lambda _: move(), range(6)))

        assert moved == 2000
        assert broker.pop([MEDIUM], limit=5000, wait_s=0).ids == tuple(range(1, 2001))

    def test_scripts_come_back_after_the_server_has_forgotten_them(self, broker: RedisBroker, raw: redis.Redis) -> None:
        broker.delay(MEDIUM, {1: 1, 2: 2})

        moved = []
        for _ in range(2):
            raw.script_flush()
            moved.append(broker.promote(MEDIUM, now_ms=9, limit=1))

        assert moved == [1, 1]

    # Junk

    def test_entries_that_are_no_id_are_handed_out_as_junk_and_the_ids_go_on(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys
    ) -> None:
        junk = [
            b"abc",
            b"",
            b"9" * 20,
            b"9223372036854775808",
            b"12\n",
            b"\xff\xfe",
            b"-1",
            b"0",
            b"007",
            b"1.0",
            b"+1",
        ]
        raw.lpush(keys.ready(MEDIUM), b"1", *junk, b"9223372036854775807", b"2")

        popped = broker.pop([MEDIUM], limit=100, wait_s=1)

        assert popped.ids == (1, 2**63 - 1, 2)
        assert popped.junk == tuple(junk)

    def test_junk_is_shortened_and_is_not_in_the_window(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys
    ) -> None:
        raw.lpush(keys.ready(MEDIUM), b"x" * 100_000, b"5", "\u0665")

        assert broker.window(MEDIUM, 9) == Window(frozenset({5}), 3)
        popped = broker.pop([MEDIUM], limit=1, wait_s=1)
        assert (popped.level, popped.ids, popped.junk) == (MEDIUM, (), (b"x" * 60,))

    # A key of another type

    @pytest.mark.parametrize("wait_s", [0, 1])
    def test_a_list_key_of_another_type_is_left_out_logged_once_and_the_others_go_on(
        self,
        broker: RedisBroker,
        raw: redis.Redis,
        keys: Keys,
        clock: HandClock,
        caplog: pytest.LogCaptureFixture,
        wait_s: float,
    ) -> None:
        raw.set(keys.ready(HIGH), "a string")
        broker.push(MEDIUM, [1, 2, 3])

        taken = []
        for _ in range(3):
            taken += broker.pop([HIGH, MEDIUM], limit=1, wait_s=wait_s).ids
            clock.time += LEFT_OUT_S * 0.7

        assert taken == [1, 2, 3]
        assert [r.getMessage() for r in caplog.records if keys.ready(HIGH) in r.getMessage()] == [
            f"the Redis key {keys.ready(HIGH)} holds another type than tandemq's; it is left out until it is deleted"
        ]

    def test_a_key_that_was_left_out_is_served_again_once_it_is_deleted(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys, clock: HandClock
    ) -> None:
        raw.set(keys.ready(HIGH), "a string")
        broker.pop([HIGH, MEDIUM], limit=1, wait_s=0)
        raw.delete(keys.ready(HIGH))
        broker.push(HIGH, [1])

        before = broker.pop([HIGH, MEDIUM], limit=1, wait_s=0).ids
        clock.time += LEFT_OUT_S
        after = broker.pop([HIGH, MEDIUM], limit=1, wait_s=0).ids

        assert (before, after) == ((), (1,))

    def test_a_pop_waits_out_its_time_when_all_keys_are_left_out(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys, clock: HandClock
    ) -> None:
        raw.set(keys.ready(HIGH), "a string")

        for _ in range(3):
            broker.pop([HIGH], limit=1, wait_s=0.2)

        assert clock.slept == [0.2, 0.2, 0.2]

    def test_keys_of_another_type_count_as_empty_everywhere(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys
    ) -> None:
        for key in (keys.ready(HIGH), keys.delayed(HIGH)):
            raw.hset(key, "a", "hash")
        raw.set(keys.levels("default"), "text")
        raw.set(keys.queues, "text")
        raw.hset(keys.generation("default"), "a", "hash")

        broker.push(HIGH, [1])
        broker.push_next(HIGH, [1])
        broker.delay(HIGH, {1: 1})
        broker.register([HIGH])

        assert broker.promote(HIGH, now_ms=9, limit=9) == 0
        assert (broker.depth(HIGH), broker.delayed(HIGH), broker.window(HIGH, 5)) == (0, 0, Window())
        assert (broker.levels("default"), broker.queues()) == ({0, 10, 20, 30}, set())
        assert broker.generation("default") is None
        assert not broker.advance_generation("default", old=None, new="x")
        assert raw.hgetall(keys.ready(HIGH)) == {b"a": b"hash"}

    def test_nothing_is_lost_when_the_ready_list_cannot_take_what_is_promoted(
        self, broker: RedisBroker, raw: redis.Redis, keys: Keys
    ) -> None:
        broker.delay(MEDIUM, {1: 1, 2: 2})
        raw.set(keys.ready(MEDIUM), "a string")

        assert broker.promote(MEDIUM, now_ms=9, limit=9) == 0
        assert broker.delayed(MEDIUM) == 2

    # Generation

    def test_the_first_install_stands_until_an_operator_says_otherwise(self, broker: RedisBroker) -> None:
        assert broker.install() is None
        assert broker.mark_install("mine") == "mine"
        assert broker.mark_install("theirs") == "mine"
        assert broker.install() == "mine"

        broker.adopt_install("theirs")
        assert broker.install() == "theirs"

    def test_a_generation_advances_only_from_the_value_that_was_read(self, broker: RedisBroker) -> None:
        assert broker.generation("default") is None
        assert not broker.advance_generation("default", old="i:0:ready", new="i:1:ready")
        assert broker.advance_generation("default", old=None, new="i:1:ready")
        assert not broker.advance_generation("default", old=None, new="i:9:ready")
        assert broker.advance_generation("default", old="i:1:ready", new="i:2:ready")
        assert broker.generation("default") == "i:2:ready"
        assert broker.generation("other") is None

    def test_of_many_racing_advances_one_wins(self, broker: RedisBroker) -> None:
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(lambda n: broker.advance_generation("default", old=None, new=f"i:{n}:ready"), range(6)))

        assert sum(won) == 1
        assert broker.generation("default") == f"i:{won.index(True)}:ready"

    def test_a_rebuild_empties_every_level_of_its_queue_and_no_other(self, broker: RedisBroker) -> None:
        for level in (LOW, HIGH, Level("default", -3)):
            broker.push(level, [1])
            broker.delay(level, {2: 2})
        broker.push(OTHER, [3])

        assert broker.begin_rebuild("default", old=None, new="i:2:building:start")

        assert [broker.depth(x) + broker.delayed(x) for x in (LOW, HIGH, Level("default", -3), OTHER)] == [0, 0, 0, 1]
        assert broker.generation("default") == "i:2:building:start"

    def test_a_rebuild_does_not_begin_when_the_key_has_changed(self, broker: RedisBroker) -> None:
        broker.push(LOW, [1])
        broker.advance_generation("default", old=None, new="i:1:ready")

        assert not broker.begin_rebuild("default", old=None, new="i:2:building:start")
        assert not broker.begin_rebuild("default", old="i:0:ready", new="i:2:building:start")
        assert (broker.depth(LOW), broker.generation("default")) == (1, "i:1:ready")

    def test_a_chunk_puts_ids_back_in_order_and_moves_the_cursor(self, broker: RedisBroker) -> None:
        broker.begin_rebuild("default", old=None, new="g0")

        ready = [(20, 5), (20, 6), (0, 1), (20, 7)]
        assert broker.rebuild_chunk("default", old="g0", new="g1", ready=ready, delayed=[(0, 8, 100), (0, 9, 200)])

        assert broker.generation("default") == "g1"
        assert broker.pop([HIGH], limit=9, wait_s=0).ids == (5, 6, 7)
        assert broker.pop([LOW], limit=9, wait_s=0).ids == (1,)
        assert broker.promote(LOW, now_ms=199, limit=9) == 1
        assert broker.pop([LOW], limit=9, wait_s=0).ids == (8,)

    def test_a_chunk_is_refused_whole_when_the_key_has_changed(self, broker: RedisBroker, raw: redis.Redis) -> None:
        broker.begin_rebuild("default", old=None, new="g0")
        assert broker.rebuild_chunk("default", old="g0", new="g1", ready=[(0, 1)], delayed=[])

        assert not broker.rebuild_chunk("default", old="g0", new="g1", ready=[(0, 1)], delayed=[(0, 2, 2)])
        raw.flushdb()
        assert not broker.rebuild_chunk("default", old="g1", new="g2", ready=[(0, 3)], delayed=[])

        assert (broker.depth(LOW), broker.delayed(LOW), broker.generation("default")) == (0, 0, None)

    def test_an_empty_chunk_only_moves_the_cursor_and_a_large_one_fits(self, broker: RedisBroker) -> None:
        broker.begin_rebuild("default", old=None, new="g0")

        assert broker.rebuild_chunk("default", old="g0", new="g1", ready=[], delayed=[])
        ready = [(0, n) for n in range(1, 2001)]
        delayed = [(0, n, n) for n in range(3001, 5001)]
        assert broker.rebuild_chunk("default", old="g1", new="g2", ready=ready, delayed=delayed)

        assert (broker.depth(LOW), broker.delayed(LOW)) == (2000, 2000)
