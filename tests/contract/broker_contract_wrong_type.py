"""What every broker must do when somebody else's value stands at one of its keys."""

from __future__ import annotations

import pytest
import redis

from tandemq.broker.keys import Keys
from tandemq.broker.popping import LEFT_OUT_S
from tandemq.broker.protocol import Window
from tandemq.broker.redis_broker import RedisBroker
from tests.contract.broker_bed import HIGH, MEDIUM, BrokerBed, HandClock


class WrongTypeContract(BrokerBed):
    """Part of ``BrokerContract``."""

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
