"""What every broker must do, whatever server is behind it. Adapters inherit from ``BrokerContract``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tandemq.broker.keys import Keys
from tandemq.broker.protocol import Window
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.task import Level
from tests.contract.broker_bed import HIGH, LOW, MEDIUM, OTHER
from tests.contract.broker_contract_generation import GenerationContract
from tests.contract.broker_contract_wrong_type import WrongTypeContract
from tests.waiting import eventually


class BrokerContract(WrongTypeContract, GenerationContract):
    """Adapters give the fixtures ``pools``, ``raw`` (a plain client of the same server) and ``namespace``."""

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
