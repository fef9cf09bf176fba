"""The gate: who is let in, by which token, and how often. Time is set by hand."""

from __future__ import annotations

import logging
import time

import pytest
from starlette.requests import Request

from tandemq import TandemQ
from tandemq.core import ids
from tandemq.core.errors import ConfigurationError, StoreUnavailable
from tandemq.core.tokens import text_of
from tandemq.http import security
from tandemq.http.calls import Caller
from tandemq.http.options import ApiOptions
from tandemq.http.problems import Problem
from tandemq.http.roster import Bucket
from tandemq.http.routing import OPERATE, PRODUCE, WORK
from tandemq.http.security import Gate
from tandemq.testing import FakeClock
from tests.http.gate_bed import ANY, Door, Store, door, play, settled, store, tandemq_app, tandemq_clock

__all__ = ["door", "store", "tandemq_app", "tandemq_clock"]

# who is let in


def test_without_any_token_this_machine_is_let_in_and_no_other(tandemq_app: TandemQ, door: Door) -> None:
    async def scenario() -> None:
        for client in ("127.0.0.1", "127.8.9.1", "::1"):
            assert await door.ask(client=client) == Caller("local", ANY)
        for client in ("10.0.0.5", "::ffff:10.0.0.5", "2001:db8::1", "testclient", "", None):
            assert await door.status(client=client) == 401
        for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"):
            assert await door.status(headers=((header.lower(), "10.0.0.5"),)) == 401
        # Bound to a network: nobody, not even who comes from here.
        assert await Door(tandemq_app, host="0.0.0.0").status() == 401

    play(scenario)


def test_one_token_closes_the_api_and_a_revoked_one_keeps_it_closed(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door
) -> None:
    async def scenario() -> None:
        assert await door.status() == 200
        made = tandemq_app.tokens.create("shop", ["read"])
        tandemq_clock.advance(2)
        assert await door.status() == 401
        assert await door.status(made.text) == 200
        tandemq_app.tokens.revoke("shop")
        tandemq_clock.advance(2)
        assert [await door.status(), await door.status(made.text)] == [401, 401]

    play(scenario)


def test_a_token_is_let_in_where_its_roles_are_and_is_called_by_its_name(tandemq_app: TandemQ, door: Door) -> None:
    made = tandemq_app.tokens.create("shop", ["produce", "read"])

    async def scenario() -> None:
        assert await door.ask(made.text, PRODUCE) == Caller("token shop", frozenset({"produce", "read"}))
        refused = await door.ask(made.text, WORK)
        assert isinstance(refused, Problem)
        assert (refused.kind, refused.detail) == (
            "forbidden", "this token has the role read, produce; this needs one of work, operate",
        )  # fmt: skip
        # For anybody: the token is not even looked at.
        for token in (None, "garbage", made.text):
            assert await door.ask(token, None) == security.ANYBODY
        assert security.ANYBODY.roles == frozenset()

    play(scenario)


def test_what_is_no_live_token_is_401(tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door) -> None:
    made = tandemq_app.tokens.create("shop", ["operate"])
    other = tandemq_app.tokens.create("other", ["operate"])
    short = tandemq_app.tokens.create("short", ["operate"], expires=5)
    secret = made.text.rpartition(made.id)[2][1:]
    unknown = text_of("0" * 12, secret)
    swapped = text_of(other.id, secret)

    async def scenario() -> None:
        assert await door.status(made.text, OPERATE) == 200
        for token in (
            unknown, swapped, made.text[:-1], made.text + "A", made.text[:-1] + ("A" if made.text[-1] != "A" else "B"),
            made.text.upper(), made.text.replace("tq_", "tq-"), secret, made.id, "tq__", "\xff" * 60, f"{made.text} x",
        ):  # fmt: skip
            refused = await door.ask(token, OPERATE, client="10.1.1.1" if token == unknown else "10.1.1.2")
            assert isinstance(refused, Problem)
            assert refused.status == 401, token
            assert refused.headers == {"WWW-Authenticate": "Bearer"}
        for value in ("", "Bearer", f"Basic {made.text}", made.text, f"Bearer{made.text}", f"Bearer\t{made.text}"):
            assert await door.status(None, headers=(("authorization", value),), client="10.1.1.3") == 401
        # Twice is no once, be both right.
        assert await door.status(made.text, headers=(("authorization", f"Bearer {made.text}"),)) == 401
        for value in (f"bearer {made.text}", f"BEARER  {made.text} "):
            assert await door.status(headers=(("authorization", value),)) == 200
        # To the instant, not to the next reading.
        tandemq_clock.advance(4.9)
        assert await door.status(short.text) == 200
        tandemq_clock.advance(0.1)
        assert await door.status(short.text) == 401
        assert await door.status(made.text) == 200

    play(scenario)


def test_two_are_good_at_once_so_that_one_can_take_the_place_of_the_other(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door
) -> None:
    old = tandemq_app.tokens.create("shop", ["produce"])

    async def scenario() -> None:
        assert await door.status(old.text) == 200
        new = tandemq_app.tokens.create("shop", ["produce"])
        tandemq_clock.advance(2)
        assert [await door.status(old.text), await door.status(new.text)] == [200, 200]
        tandemq_app.tokens.revoke(old.id)
        tandemq_clock.advance(2)
        assert [await door.status(old.text), await door.status(new.text)] == [401, 200]

    play(scenario)


# how often


def test_a_token_may_send_its_rate_and_is_told_when_to_come_back(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door
) -> None:
    slow = tandemq_app.tokens.create("slow", ["read"], rate=0.4)
    fast = tandemq_app.tokens.create("fast", ["read"], rate=50)
    free = tandemq_app.tokens.create("free", ["read"])

    async def scenario() -> None:
        assert await door.status(slow.text) == 200
        refused = await door.ask(slow.text)
        assert isinstance(refused, Problem)
        assert (refused.status, refused.headers) == (429, {"Retry-After": "3"})
        assert slow.text not in str(refused.document())
        tandemq_clock.advance(2.4)
        assert await door.status(slow.text) == 429
        tandemq_clock.advance(0.1)
        assert await door.status(slow.text) == 200

        assert [await door.status(fast.text) for _ in range(60)] == [200] * 50 + [429] * 10
        # A new reading of the tokens is no new start, and other tokens have not paid.
        tandemq_clock.advance(0.1)
        assert [await door.status(fast.text) for _ in range(6)] == [200] * 5 + [429]
        assert {await door.status(free.text) for _ in range(500)} == {200}
        for _ in range(20):
            tandemq_clock.advance(1)
            assert [await door.status(fast.text) for _ in range(51)] == [200] * 50 + [429]
            await settled()

    play(scenario)


def test_whoever_waits_as_long_as_told_is_let_in() -> None:
    for rate in (0.001, 0.1, 0.3, 1.0, 3.0, 7.7, 1000.0):
        for begun in (0.1, 1000.3, 12_345_678.9):
            bucket, now = Bucket(rate, begun), begun
            while not (wait_s := bucket.take(now)):
                pass
            for _ in range(20):
                assert wait_s <= 1 / rate + 1e-9
                now += wait_s
                assert bucket.take(now) == 0.0
                wait_s = bucket.take(now)


def test_tokens_without_a_rate_have_that_of_the_api(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    mine = tandemq_app.tokens.create("mine", ["read"], rate=4)
    common = tandemq_app.tokens.create("common", ["read"])
    door = Door(tandemq_app, rate=2.0)

    async def scenario() -> None:
        assert [await door.status(mine.text) for _ in range(5)] == [200] * 4 + [429]
        assert [await door.status(common.text) for _ in range(3)] == [200] * 2 + [429]
        # What it may not do counts as well: this is no way to ask without end.
        tandemq_clock.advance(1)
        assert [await door.status(common.text, PRODUCE) for _ in range(3)] == [403] * 2 + [429]

    play(scenario)


def test_failed_logins_are_limited_by_address_and_shut_out_no_valid_token(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])
    caplog.set_level(logging.DEBUG, "tandemq")

    async def scenario() -> None:
        guesses = [text_of(*ids.api_token()) for _ in range(30)]
        assert [await door.status(guess, client="10.0.0.1") for guess in guesses] == [401] * 20 + [429] * 10
        assert len([r for r in caplog.records if "refused a token from 10.0.0.1" in r.message]) == 20
        limited = await door.ask("garbage", client="10.0.0.1")
        assert isinstance(limited, Problem)
        assert limited.headers == {"Retry-After": "3"}
        # Behind a proxy all have one address.
        assert await door.status(made.text, client="10.0.0.1") == 200
        assert await door.status("garbage", client="10.0.0.2") == 401
        # No token at all is no failed login.
        assert [await door.status(client="10.0.0.3") for _ in range(50)] == [401] * 50
        # One customer has 2^64 addresses of IPv6, and one IPv4 address however it is written.
        assert [await door.status("x", client=f"2001:db8::{n:x}") for n in range(1, 24)] == [401] * 20 + [429] * 3
        assert await door.status("x", client="2001:db8:0:1::1") == 401
        assert await door.status("x", client="::ffff:10.0.0.1") == 429

        tandemq_clock.advance(3)
        assert [await door.status("x", client="10.0.0.1") for _ in range(2)] == [401, 429]
        tandemq_clock.advance(3600)
        assert [await door.status("x", client="10.0.0.1") for _ in range(21)] == [401] * 20 + [429]

    play(scenario)


def test_the_addresses_remembered_are_bounded(
    tandemq_app: TandemQ, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    tandemq_app.tokens.create("shop", ["read"])
    monkeypatch.setattr(security, "MAX_ADDRESSES", 3)

    async def scenario() -> None:
        for n in range(20):
            assert [await door.status("x", client="10.0.0.1"), await door.status("x", client=f"10.1.0.{n}")] == [
                401
            ] * 2
        # Whoever goes on failing is not forgotten for those who failed once.
        assert await door.status("x", client="10.0.0.1") == 429
        assert len(door.gate._failures) == 3

    play(scenario)


# starting


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com", "localhost.example.com", "2001:db8::1"])
def test_off_the_loopback_it_does_not_start_without_a_live_token(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, store: Store, host: str
) -> None:
    gate = Gate(tandemq_app, ApiOptions(host=host))
    for prepare in (
        lambda: None,
        lambda: tandemq_app.tokens.revoke(tandemq_app.tokens.create("a", ["read"]).id),
        lambda: (tandemq_app.tokens.create("b", ["read"], expires=1), tandemq_clock.advance(1)),
    ):
        prepare()
        with pytest.raises(ConfigurationError, match="tandemq token create"):
            gate.check_start()
    tandemq_app.tokens.create("c", ["read"])
    gate.check_start()
    # Unknown is not open: the gate has no open mode there.
    store.error = StoreUnavailable("away")
    gate.check_start()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_on_the_loopback_it_starts_without_asking(tandemq_app: TandemQ, store: Store, host: str) -> None:
    Gate(tandemq_app, ApiOptions(host=host)).check_start()
    assert store.readings == 0


# what it costs


def test_a_request_is_let_in_without_work_worth_naming(tandemq_app: TandemQ, door: Door) -> None:
    made = [tandemq_app.tokens.create(f"t{n}", ["read", "produce"]) for n in range(50)][25]
    raw = [(b"host", b"localhost"), (b"user-agent", b"x"), (b"accept", b"*/*"), (b"content-type", b"application/json")]
    raw += [(b"authorization", f"Bearer {made.text}".encode())]

    async def scenario() -> None:
        request = Request({"type": "http", "headers": raw, "client": ("127.0.0.1", 1)})
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(1000):
                await door.gate.admit(request, PRODUCE)
            took.append((time.perf_counter() - begun) * 1000)
        # About 2 us here. A slow hash, or a question to the database, would be hundreds.
        assert min(took) < 100

    play(scenario)
