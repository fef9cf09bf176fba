"""The tokens that the gate knows: how old they may be, and what it does while the database is away."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tandemq import TandemQ
from tandemq.core.errors import StoreUnavailable
from tandemq.http import roster
from tandemq.http.problems import Problem
from tandemq.testing import FakeClock
from tests.http.gate_bed import Door, Store, door, play, settled, store, tandemq_app, tandemq_clock

__all__ = ["door", "store", "tandemq_app", "tandemq_clock"]


@pytest.mark.parametrize("every_s", [0.1, 0.7, 1.95, 2.0, 30.0])
def test_a_revoked_token_is_refused_within_two_seconds(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store, every_s: float
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])

    async def scenario() -> None:
        for _ in range(7):
            assert await door.status(made.text) == 200
            await settled()
            tandemq_clock.advance(every_s)
        tandemq_app.tokens.revoke("shop")
        passed, answers = 0.0, []
        while passed < 4 or len(answers) < 3:
            answers.append((passed, await door.status(made.text)))
            await settled()
            tandemq_clock.advance(every_s)
            passed += every_s
        late = {status for at, status in answers if at >= 2}
        assert late <= {401, 429}
        assert 401 in {status for _, status in answers}

    play(scenario)


def test_the_database_is_asked_about_once_a_second_and_nobody_waits_under_traffic(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])

    async def scenario() -> None:
        assert await door.status(made.text) == 200
        for _ in range(1000):
            tandemq_clock.advance(0.01)
            waiting = asyncio.ensure_future(door.status(made.text))
            await asyncio.sleep(0)  # one turn of the loop: the answer was there at once
            assert waiting.done()
            assert waiting.result() == 200
            await settled()

    play(scenario)
    assert 8 <= store.readings <= 11


def test_tokens_are_read_while_all_threads_of_the_app_are_busy(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store
) -> None:
    made, busy = tandemq_app.tokens.create("shop", ["read"]), threading.Event()

    async def scenario() -> None:
        work = [asyncio.ensure_future(tandemq_app.offload(busy.wait, 60)) for _ in range(100)]
        try:
            assert await asyncio.wait_for(door.status(made.text), 5) == 200
            await asyncio.to_thread(tandemq_app.tokens.revoke, "shop")
            tandemq_clock.advance(2)
            assert await asyncio.wait_for(door.status(made.text), 5) == 401
        finally:
            busy.set()
            await asyncio.gather(*work)

    play(scenario)


def test_many_that_wait_share_one_reading(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])

    async def scenario() -> None:
        for wanted in (1, 2):  # the first of all, and one after a long silence
            store.open.clear()
            waiting = [asyncio.ensure_future(door.status(made.text)) for _ in range(50)]
            while store.readings < wanted:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            assert not any(one.done() for one in waiting)
            waiting.append(asyncio.ensure_future(door.status("garbage")))
            store.open.set()
            assert await asyncio.gather(*waiting) == [200] * 50 + [401]
            assert store.readings == wanted
            await settled()
            tandemq_clock.advance(60)

    play(scenario)


def test_while_the_database_is_away_the_known_tokens_go_on_until_they_expire(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tandemq_app.tokens
    made, short = tokens.create("shop", ["read"]), tokens.create("short", ["read"], expires=100)

    async def scenario() -> None:
        assert await door.status(made.text) == 200
        store.error = StoreUnavailable("no route to host")
        for _ in range(99):
            tandemq_clock.advance(1)
            assert [await door.status(one) for one in (made.text, short.text)] == [200, 200]
            await settled()
        tandemq_clock.advance(1)
        assert await door.status(short.text) == 401
        tandemq_clock.advance(10_000)
        assert [await door.status(one) for one in (made.text, None, "garbage")] == [200, 401, 401]
        await settled()

        # It is back: what was revoked meanwhile is refused by the first request that can know.
        tokens.revoke("shop")
        store.error = None
        tandemq_clock.advance(2)
        assert await door.status(made.text) == 401

    caplog.set_level(logging.INFO)
    play(scenario)
    said = [r.message for r in caplog.records if "can" in r.message]
    assert said == ["the tokens cannot be read: no route to host", "the tokens can be read again"]


def test_before_the_first_reading_a_database_that_is_away_is_503_and_left_in_peace(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])
    store.error = StoreUnavailable("no route to host")

    async def scenario() -> None:
        refused = [await door.ask(token) for token in (made.text, None, "garbage", made.text)]
        assert [(one.kind, "Retry-After" in one.headers) for one in refused if isinstance(one, Problem)] == [
            ("unavailable", True)
        ] * 4
        assert store.readings == 1
        assert await door.status(None, None) == 200
        store.error = None
        tandemq_clock.advance(1)
        assert await door.status(made.text) == 200

    play(scenario)


def test_a_database_that_does_not_answer_is_waited_for_once(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, store: Store, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])
    for name in ("PATIENCE_S", "FIRST_PATIENCE_S"):
        monkeypatch.setattr(roster, name, 0.05)

    async def scenario() -> None:
        store.open.clear()
        assert await door.status(made.text) == 503
        store.open.set()
        await settled()
        assert await door.status(made.text) == 200
        store.open.clear()
        tandemq_clock.advance(5)
        assert await door.status(made.text) == 200
        tandemq_clock.advance(5)
        at_once = asyncio.ensure_future(door.status(made.text))
        await asyncio.sleep(0)
        assert at_once.done()
        assert store.readings == 2
        store.open.set()
        await at_once

    play(scenario)


def test_stopping_leaves_nothing_behind(tandemq_app: TandemQ, door: Door, store: Store) -> None:
    async def scenario() -> None:
        store.open.clear()
        waiting = asyncio.ensure_future(door.status())
        while not store.readings:
            await asyncio.sleep(0.001)
        stopping = asyncio.ensure_future(door.gate.stop())
        assert await asyncio.wait_for(waiting, 30) == 503
        assert not stopping.done(), "a reading is under way over its connection"
        store.open.set()
        await asyncio.wait_for(stopping, 30)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_uses_are_noted_once_a_minute_and_not_on_the_way(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, store: Store
) -> None:
    one, two = (tandemq_app.tokens.create(name, ["read"]) for name in ("one", "two"))

    async def scenario() -> None:
        for _ in range(61):
            assert await door.status(one.text) == 200
            await settled()
            tandemq_clock.advance(1)
        assert store.noted == [{one.id}, {one.id}]
        assert await door.status(two.text) == 200
        await settled()
        assert store.noted[2:] == [{two.id}]
        assert {t.name: t.last_used_at for t in tandemq_app.tokens.list()}["two"] == tandemq_clock.now()

        store.note_error = StoreUnavailable("read-only")
        tandemq_clock.advance(100)
        assert [await door.status(one.text), await door.status(two.text)] == [200, 200]
        await settled()
        assert [await door.status("garbage"), await door.status(one.text)] == [401, 200]

    play(scenario)
    assert len(store.noted) in {4, 5}
