"""The store contract: tokens of the HTTP API."""

from __future__ import annotations

from typing import Any

import pytest

from tandemq.core.audit import Deed
from tandemq.core.errors import StoreRefused
from tandemq.core.tokens import NewToken, digest
from tandemq.store import SqlStore
from tandemq.testing import FakeClock
from tests.contract.store_contract import Sql, StoreContract

HASH = digest(b"a secret")


def new(token_id: str, **changes: Any) -> NewToken:
    given: dict[str, Any] = {"name": "shop", "roles": frozenset({"work", "produce"}), "hash": HASH.hex()}
    return NewToken(id=token_id, **(given | changes))


def deed(action: str = "token_create", who: str = "ada") -> Deed:
    return Deed(action=action, who=who, reason="so")


def live(store: SqlStore) -> list[str]:
    return sorted(token.id for token in store.live_tokens().tokens)


class TokensContract(StoreContract):
    def test_a_token_is_kept_as_it_was_made(self, timed: SqlStore, clock: FakeClock) -> None:
        made_at = clock.now()
        timed.add_token(new("a1", rate=2.5, expires_s=90.5), deed=deed(who="ada 😀"))
        clock.advance(1)
        timed.add_token(new("b2", name="other", roles=frozenset({"read"})), deed=deed())

        other, token = timed.tokens()
        assert (other.id, other.name, other.roles, other.rate, other.expires_at) == ("b2", "other", {"read"}, 0.0, None)
        assert (token.id, token.name, token.roles, token.rate) == ("a1", "shop", {"produce", "work"}, 2.5)
        assert (token.state, token.created_at, token.created_by) == ("live", made_at, "ada 😀")
        assert token.expires_at is not None
        assert (token.expires_at - made_at).total_seconds() == 90.5
        assert (token.revoked_at, token.last_used_at) == (None, None)
        (left,) = [t.left_s for t in timed.live_tokens().tokens if t.id == "a1"]
        assert left == 89.5
        assert {t.hash for t in timed.live_tokens().tokens} == {HASH}
        assert {t.left_s for t in timed.live_tokens().tokens if t.id == "b2"} == {None}

    def test_no_row_holds_more_than_the_hash(self, store: SqlStore, sql: Sql) -> None:
        store.add_token(new("a1"), deed=deed())
        assert sql("SELECT id, name, roles, hash FROM tandemq_api_tokens") == [
            ("a1", "shop", "produce,work", HASH.hex())
        ]

    def test_expired_and_revoked_ones_are_not_live_and_stay_listed(self, timed: SqlStore, clock: FakeClock) -> None:
        timed.add_token(new("a1", expires_s=60), deed=deed())
        timed.add_token(new("b2"), deed=deed())
        assert live(timed) == ["a1", "b2"]

        clock.advance(59.999999)
        assert live(timed) == ["a1", "b2"]
        clock.advance(0.000001)
        assert live(timed) == ["b2"]
        assert timed.revoke_tokens(["b2", "none"], deed=deed("token_revoke")) == 1

        assert live(timed) == []
        assert timed.live_tokens().any_ever
        assert {t.id: t.state for t in timed.tokens()} == {"a1": "expired", "b2": "revoked"}
        assert {t.revoked_at for t in timed.tokens() if t.id == "b2"} == {clock.now()}

    def test_without_a_row_there_never_was_a_token(self, store: SqlStore) -> None:
        assert (store.live_tokens().tokens, store.live_tokens().any_ever) == ((), False)
        assert store.tokens() == []

    def test_what_is_revoked_stays_revoked_since_then(self, timed: SqlStore, clock: FakeClock) -> None:
        timed.add_token(new("a1", expires_s=10), deed=deed())
        timed.revoke_tokens(["a1"], deed=deed("token_revoke"))
        at = clock.now()
        clock.advance(60)
        assert timed.revoke_tokens(["a1"], deed=deed("token_revoke")) == 0
        assert timed.revoke_tokens([], deed=deed("token_revoke")) == 0
        (token,) = timed.tokens()
        assert (token.state, token.revoked_at) == ("revoked", at)

    def test_each_change_has_its_row_of_the_audit_log_and_nothing_else_has(self, store: SqlStore) -> None:
        for token_id in ("a1", "b2"):
            store.add_token(new(token_id), deed=deed())
        store.revoke_tokens(["a1", "b2"], deed=deed("token_revoke", "bob"))
        store.revoke_tokens(["a1", "b2"], deed=deed("token_revoke", "eve"))
        store.note_tokens_used(["a1"])

        assert [(r.who, r.action, r.n, r.reason) for r in store.audit().items] == [
            ("bob", "token_revoke", 2, "so"),
            ("ada", "token_create", 1, "so"),
            ("ada", "token_create", 1, "so"),
        ]

    def test_neither_is_there_without_the_other(self, store: SqlStore, sql: Sql) -> None:
        store.add_token(new("a1"), deed=deed())
        sql("ALTER TABLE tandemq_audit_log RENAME TO somewhere_else")
        for change in (
            lambda: store.add_token(new("b2"), deed=deed()),
            lambda: store.revoke_tokens(["a1"], deed=deed("token_revoke")),
        ):
            with pytest.raises(Exception, match="tandemq"):
                change()
        sql("ALTER TABLE somewhere_else RENAME TO tandemq_audit_log")

        assert live(store) == ["a1"]
        assert len(store.audit().items) == 1

    def test_one_sent_again_after_a_lost_answer_is_one(self, store: SqlStore) -> None:
        for _ in range(2):
            store.add_token(new("a1"), deed=deed())
        assert [t.id for t in store.tokens()] == ["a1"]
        assert len(store.audit().items) == 1
        with pytest.raises(StoreRefused, match="another token has the id"):
            store.add_token(new("a1", hash=digest(b"another").hex()), deed=deed())

    def test_uses_are_noted_once_a_minute(self, timed: SqlStore, clock: FakeClock) -> None:
        def used() -> dict[str, Any]:
            return {t.id: t.last_used_at for t in timed.tokens()}

        for token_id in ("a1", "b2", "c3"):
            timed.add_token(new(token_id), deed=deed())
        timed.note_tokens_used([])
        timed.note_tokens_used(["a1", "b2", "gone"])
        first = clock.now()
        assert used() == {"a1": first, "b2": first, "c3": None}

        clock.advance(59)
        timed.note_tokens_used(["a1", "c3"])
        assert used() == {"a1": first, "b2": first, "c3": clock.now()}
        clock.advance(2)
        timed.note_tokens_used(["a1"])
        assert used()["a1"] == clock.now()
