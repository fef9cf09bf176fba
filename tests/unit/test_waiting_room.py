"""The waiting room of claims, turn by turn: who gets what, who has left, and what happens when a server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq.core.errors import StoreBusy, StoreUnavailable, StoreUnknown
from tandemq.core.task import Lease
from tandemq.http import waiting
from tandemq.http.waiting import WaitingRoom
from tandemq.remote import Wanted
from tandemq.testing import FakeClock
from tests.unit.remote_bed import LOW, Bed

Asked = asyncio.Future[list[Lease]]


class Room(Bed):
    """A room whose thread is the test; ``ask`` comes back once the request waits."""

    def __init__(self, app: TandemQ, clock: FakeClock) -> None:
        super().__init__(app, clock)
        self.room = WaitingRoom(self.claims)
        self.gone: dict[Asked, asyncio.Future[None]] = {}

    async def ask(self, most: int = 1, wait_s: float = 60.0, **changes: Any) -> Asked:
        given = {"worker_id": "w", "queues": ("default",), "types": None, "most": most, "lease_s": 30.0}
        gone = asyncio.get_running_loop().create_future()
        before = len(self.room)
        asked = asyncio.ensure_future(self.room.claim(Wanted(**given | changes), wait_s, gone))
        self.gone[asked] = gone
        while len(self.room) == before and not asked.done():
            await asyncio.sleep(0.001)
        return asked

    async def turn(self) -> float:
        return await asyncio.to_thread(self.room.step)


@pytest.fixture
def run(tandemq_app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a coroutine function with a room."""
    monkeypatch.setattr(waiting, "BLOCK_S", 0.01)

    def run_it(test: Callable[[Room], Awaitable[None]]) -> None:
        async def whole() -> None:
            room = Room(tandemq_app, tandemq_clock)
            await test(room)
            await room.room.stop()

        asyncio.run(whole())

    return run_it


def ids(leases: list[Lease]) -> list[int]:
    return [lease.id for lease in leases]


def test_what_is_there_is_given_without_waiting(run: Any) -> None:
    async def test(room: Room) -> None:
        task_id = room.enqueue()
        asked = await room.ask()
        assert asked.done()
        assert ids(asked.result()) == [task_id]
        assert len(room.room) == 0

    run(test)


def test_first_come_first_served_and_as_many_as_each_wants(run: Any) -> None:
    async def test(room: Room) -> None:
        first, second, third = await room.ask(), await room.ask(most=5), await room.ask()
        tasks = [room.enqueue() for _ in range(4)]
        while not second.done():
            await room.turn()
            await asyncio.sleep(0)
        assert (ids(await first), ids(await second)) == (tasks[:1], tasks[1:])
        assert not third.done()
        later = room.enqueue()
        await room.turn()
        assert ids(await third) == [later]

    run(test)


def test_a_task_goes_to_the_first_that_knows_its_type(run: Any) -> None:
    async def test(room: Room) -> None:
        plain = await room.ask(types=frozenset({"a"}))
        knows = await room.ask(types=frozenset({"a", "b"}), most=3)
        tasks = [room.enqueue("b"), room.enqueue("b"), room.enqueue("a")]
        await room.turn()
        assert ids(await knows) == [tasks[0], tasks[1], tasks[2]]
        assert not plain.done()
        nobodys = room.enqueue("c")
        await room.turn()
        assert room.state(nobodys) == ("scheduled", 0), "deferred, as by a worker that does not know it"
        assert not plain.done()

    run(test)


def test_who_has_waited_longest_is_not_starved_by_higher_priorities(run: Any) -> None:
    async def test(room: Room) -> None:
        oldest = await room.ask(queues=("slow",))
        others = [await room.ask(queues=("busy",)) for _ in range(3)]
        for _ in range(3):
            room.enqueue(queue="busy", priority="critical")
        slow = room.enqueue(queue="slow")
        await room.turn()
        assert ids(await oldest) == [slow]
        await room.turn()
        for other in others:
            assert len(await other) == 1

    run(test)


def test_a_copy_is_no_answer_and_the_place_is_kept(run: Any) -> None:
    async def test(room: Room) -> None:
        done = room.enqueue()
        assert (await room.ask()).done()
        first, second = await room.ask(), await room.ask()
        room.app.broker.push(LOW, [done])
        await room.turn()
        assert not first.done()
        tasks = [room.enqueue(), room.enqueue()]
        await room.turn()
        assert (ids(await first), ids(await second)) == (tasks[:1], tasks[1:])

    run(test)


def test_nothing_is_claimed_for_who_has_left_or_waited_long_enough(run: Any) -> None:
    async def test(room: Room) -> None:
        leaves, brief = await room.ask(), await room.ask(wait_s=0.05)
        room.gone[leaves].set_result(None)
        assert await leaves == []
        assert await brief == []
        assert len(room.room) == 0
        task_id = room.enqueue()
        assert await room.turn() == waiting.IDLE_S
        assert (room.state(task_id), room.listed()) == (("ready", 0), [task_id])

    run(test)


def test_who_leaves_while_something_is_claimed_for_it_is_told(run: Any) -> None:
    async def test(room: Room) -> None:
        asked = await room.ask()
        loop = asyncio.get_running_loop()
        task_id = room.enqueue()
        room.store.before["claim"] = lambda *_, **__: loop.call_soon_threadsafe(room.gone[asked].set_result, None)
        room.store.after["claim"] = lambda *_, **__: asyncio.run_coroutine_threadsafe(
            asyncio.sleep(0.02), loop
        ).result()
        await room.turn()
        assert ids(await asked) == [task_id], "its request hands it back"

    run(test)


def test_who_leaves_while_a_copy_is_claimed_for_it_does_not_wait_on(run: Any) -> None:
    async def test(room: Room) -> None:
        done = room.enqueue()
        assert (await room.ask()).done()
        asked = await room.ask()
        room.app.broker.push(LOW, [done])
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            room.gone[asked].set_result(None)
            while not waiter.has_left:
                await asyncio.sleep(0.001)

        (waiter,) = room.room._waiting
        room.store.before["claim"] = lambda *_, **__: asyncio.run_coroutine_threadsafe(leave(), loop).result()
        await room.turn()
        assert await asyncio.wait_for(asked, 30) == []
        assert len(room.room) == 0

    run(test)


def test_claims_that_are_owed_are_no_business_of_those_who_wait(run: Any) -> None:
    async def test(room: Room) -> None:
        room.claims._owe(4711, 99)
        asked = await room.ask()
        task_id = room.enqueue()
        room.fails(room.store, "give_back", StoreBusy("locked"))
        await room.turn()
        assert ids(await asked) == [task_id]
        assert await asyncio.to_thread(room.room._debts.turn) > 0
        assert room.claims.owes

    run(test)


def test_what_was_popped_for_who_has_left_goes_back(run: Any) -> None:
    async def test(room: Room) -> None:
        asked = await room.ask(most=3)
        tasks = [room.enqueue() for _ in range(3)]
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            room.gone[asked].set_result(None)
            await asked

        def leaves(*_: Any, **__: Any) -> None:
            del room.broker.after["pop"]
            asyncio.run_coroutine_threadsafe(leave(), loop).result()

        room.broker.after["pop"] = leaves
        await room.turn()
        assert (asked.result(), room.listed()) == ([], tasks)
        assert [room.state(i) for i in tasks] == [("ready", 0)] * 3

    run(test)


@pytest.mark.parametrize("method", ["claim", "types_of"])
def test_with_the_database_away_everybody_is_told_and_nothing_is_lost(run: Any, method: str) -> None:
    async def test(room: Room) -> None:
        asked = [await room.ask(types=frozenset({"a"})), await room.ask()]
        tasks = [room.enqueue(), room.enqueue()]
        room.fails(room.store, method, StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await room.turn()
        for one in asked:
            with pytest.raises(StoreUnavailable):
                await one
        assert room.listed() == tasks
        assert len(room.room) == 0

    run(test)


def test_a_claim_whose_answer_was_lost_is_given_back_by_the_thread(run: Any) -> None:
    async def test(room: Room) -> None:
        asked = await room.ask()
        task_id = room.enqueue()
        room.fails(room.store, "claim", StoreUnknown("cut"), when="after")
        with pytest.raises(StoreUnknown):
            await room.turn()
        with pytest.raises(StoreUnknown):
            await asked
        assert room.state(task_id) == ("running", 1)
        assert await asyncio.to_thread(room.room._debts.turn) == waiting.DEBTS_S
        assert room.state(task_id) == ("ready", 0)

    run(test)


def test_an_error_that_is_ours_is_the_request_s_own(run: Any) -> None:
    async def test(room: Room) -> None:
        first, second = await room.ask(), await room.ask()
        tasks = [room.enqueue(), room.enqueue()]
        room.fails(room.store, "claim", ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await room.turn()
        with pytest.raises(ZeroDivisionError):
            await first
        assert not second.done()
        await room.turn()
        await room.turn()
        assert set(ids(await second)) <= set(tasks)

    run(test)


def test_without_redis_those_who_wait_are_served_from_the_database(run: Any) -> None:
    async def test(room: Room) -> None:
        first, second = await room.ask(), await room.ask(queues=("other",))
        tasks = [room.enqueue(), room.enqueue(queue="other"), room.enqueue(queue="foreign")]
        with room.redis_away():
            await room.turn()
            assert not first.done()
            room.clock.advance(room.app.settings.redis_away_s + 0.1)
            await room.turn()
            assert (ids(await first), ids(await second)) == (tasks[:1], tasks[1:2])
            third = await room.ask()
            reads = room.store.calls.count("open_levels")
            assert 0 < await room.turn() <= waiting.BLOCK_S
            assert room.store.calls.count("open_levels") == reads, "not in every turn"
            late = room.enqueue()
            room.clock.advance(5)
            await room.turn()
            assert ids(await third) == [late]

    run(test)


def test_without_redis_one_that_asks_again_and_again_starves_nobody(run: Any) -> None:
    async def test(room: Room) -> None:
        waits = await room.ask()
        with room.redis_away():
            await room.turn()
            room.clock.advance(room.app.settings.redis_away_s + 0.1)
            task_id = room.enqueue()
            for _ in range(3):
                assert await asyncio.to_thread(room.take, queues=("other",)) == []
            await room.turn()
            assert ids(await asyncio.wait_for(waits, 30)) == [task_id]

    run(test)


def test_at_the_end_everybody_goes_home_and_nobody_waits_any_more(run: Any) -> None:
    async def test(room: Room) -> None:
        asked = [await room.ask() for _ in range(3)]
        room.room.close()
        assert [await one for one in asked] == [[], [], []]
        assert await (await room.ask()) == []
        task_id = room.enqueue()
        assert ids(await (await room.ask())) == [task_id], "what is there is still given"

    run(test)


def test_what_is_claimed_for_a_loop_that_is_closed_is_handed_back(run: Any) -> None:
    async def test(room: Room) -> None:
        asked = await room.ask()
        task_id = room.enqueue()
        (waiter,) = room.room._waiting

        class Closed:
            def call_soon_threadsafe(self, *_: Any) -> None:
                raise RuntimeError("Event loop is closed")

        own, waiter._loop = waiter._loop, Closed()  # type: ignore[assignment]
        await room.turn()
        assert (room.state(task_id), room.listed()) == (("ready", 0), [task_id])
        waiter._loop = own
        waiter.tell([])
        assert await asked == []

    run(test)


def test_the_end_waits_for_whoever_may_hold_something(run: Any) -> None:
    async def test(room: Room) -> None:
        order: list[str] = []

        async def holds() -> None:
            await asyncio.sleep(0.02)
            order.append("handed back")
            raise ZeroDivisionError  # as a request whose client has gone: nobody hears of it

        room.room.keep(asyncio.ensure_future(holds()))
        asked = await room.ask()
        await room.room.stop()
        order.append("stopped")
        assert order == ["handed back", "stopped"]
        assert await asked == []

    run(test)
