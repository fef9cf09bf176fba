"""What every broker must do with the install, the generation and a rebuild."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import redis

from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.task import Level
from tests.contract.broker_bed import HIGH, LOW, OTHER, BrokerBed


class GenerationContract(BrokerBed):
    """Part of ``BrokerContract``."""

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

    def test_the_first_chunk_is_popped_before_what_was_pushed_since_the_lists_were_emptied(
        self, broker: RedisBroker
    ) -> None:
        broker.begin_rebuild("default", old=None, new="g0")
        broker.push(LOW, [4, 5])

        assert broker.rebuild_chunk(
            "default", old="g0", new="g1", ready=[(0, 1), (20, 9), (0, 2)], delayed=[(0, 8, 100)], first=True
        )
        assert broker.rebuild_chunk("default", old="g1", new="g2", ready=[(0, 6), (0, 7)], delayed=[])

        assert broker.pop([LOW], limit=9, wait_s=0).ids == (1, 2, 4, 5, 6, 7)
        assert broker.pop([HIGH], limit=9, wait_s=0).ids == (9,)
        assert broker.delayed(LOW) == 1

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
