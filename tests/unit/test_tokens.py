"""``app.tokens``, and tokens as values."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq.core import ids
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.tokens import ROLES, TOKEN_TEXT, NewToken, digest, ordered, text_of
from tandemq.testing import FakeClock
from tandemq.tokens import Revoked


def test_the_text_is_told_once_and_stored_nowhere(tandemq_app: TandemQ) -> None:
    made = tandemq_app.tokens.create("shop", ["produce", "work"], who="ada", reason="new shop")

    match = TOKEN_TEXT.fullmatch(made.text.encode())
    assert match is not None
    assert match[1].decode() == made.id
    (live,) = tandemq_app.store.live_tokens().tokens
    assert (live.id, live.roles, live.hash) == (made.id, {"produce", "work"}, digest(match[2]))
    secret = match[2].decode()
    shown = [made, *tandemq_app.tokens.list(), live, tandemq_app.audit().items]
    shown += [token.to_json() for token in tandemq_app.tokens.list()]
    assert not [one for one in shown if secret in f"{one!r} {one!s}"]
    assert not [one for one in shown if digest(match[2]).hex() in repr(one) or repr(live.hash) in repr(one)]


def test_what_is_to_be_stored_does_not_show_the_hash() -> None:
    assert "beef" not in repr(NewToken(id="a", name="b", roles=frozenset(), hash="beef"))


def test_texts_do_not_repeat() -> None:
    made = [ids.api_token() for _ in range(200)]
    assert all(TOKEN_TEXT.fullmatch(text_of(*one).encode()) for one in made)
    assert len({token_id for token_id, _ in made}) == len({secret for _, secret in made}) == 200


def test_the_audit_log_says_who_made_what_and_who_ended_it(tandemq_app: TandemQ) -> None:
    made = tandemq_app.tokens.create("shop", ["work", "read"], expires=60, rate=5, who="ada", reason="new shop")
    tandemq_app.tokens.revoke(made.id, who="bob", reason="leaked")

    revoked, created = tandemq_app.audit().items
    assert (created.who, created.action, created.reason) == ("ada", "token_create", "new shop")
    assert created.details == {
        "token": made.id, "name": "shop", "roles": ["read", "work"], "rate": 5.0, "expires_s": 60.0,
    }  # fmt: skip
    assert (revoked.who, revoked.action, revoked.reason) == ("bob", "token_revoke", "leaked")
    assert revoked.details == {"tokens": [made.id], "names": ["shop"]}


def test_several_are_live_at_once_and_are_revoked_one_by_one_or_all(tandemq_app: TandemQ) -> None:
    tokens = tandemq_app.tokens
    old, new, other = (tokens.create(name, ["read"]) for name in ("shop", "shop", "other"))

    with pytest.raises(InvalidTask, match="2 live tokens are named 'shop'") as several:
        tokens.revoke("shop")
    assert old.id in str(several.value)
    assert new.id in str(several.value)
    assert [t.state for t in tokens.list()] == ["live"] * 3
    assert [t.id for t in tokens.revoke(old.id).now] == [old.id]
    assert [t.id for t in tokens.revoke("shop").now] == [new.id]
    assert {t.id: t.state for t in tokens.list()} == {old.id: "revoked", new.id: "revoked", other.id: "live"}

    again = [tokens.create("shop", ["read"]).id for _ in range(2)]
    assert sorted(t.id for t in tokens.revoke("shop", every=True).now) == sorted(again)
    assert [t.id for t in tokens.revoke("other").now] == [other.id]
    assert len(tandemq_app.audit().items) == 9


def test_what_is_not_live_is_not_revoked_again(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    tokens = tandemq_app.tokens
    ended, expired = tokens.create("a", ["read"]), tokens.create("b", ["read"], expires=timedelta(seconds=5))
    tokens.revoke("a")
    tandemq_clock.advance(5)
    deeds = len(tandemq_app.audit().items)

    for which in ("a", ended.id):
        done = tokens.revoke(which)
        assert (done.now, [t.id for t in done.before]) == ((), [ended.id])
    assert tokens.revoke("b") == Revoked((), ())
    assert tokens.revoke("nobody") == Revoked((), ())
    assert len(tandemq_app.audit().items) == deeds
    # By its id an expired one too: its clock may be set back.
    assert [t.id for t in tokens.revoke(expired.id).now] == [expired.id]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"), ({"name": "a b"}, "name"), ({"name": "é"}, "name"), ({"name": "x" * 65}, "name"),
        ({"name": 5}, "name"), ({"name": "a\n"}, "name"), ({"name": "0123456789ab"}, "name"), ({"name": None}, "name"),
        ({"roles": []}, "roles"), ({"roles": ["admin"]}, "roles"), ({"roles": "read"}, "roles"),
        ({"roles": ["read", 1]}, "roles"), ({"roles": None}, "roles"), ({"roles": [["read"]]}, "roles"),
        ({"rate": -1}, "rate"), ({"rate": float("nan")}, "rate"), ({"rate": float("inf")}, "rate"),
        ({"rate": True}, "rate"), ({"rate": "5"}, "rate"), ({"rate": 1e-9}, "rate"), ({"rate": 10**400}, "rate"),
        ({"expires": 0}, "expires"), ({"expires": -1}, "expires"), ({"expires": float("nan")}, "expires"),
        ({"expires": 1e12}, "expires"), ({"expires": "90d"}, "expires"), ({"expires": True}, "expires"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name_and_nothing_is_stored(
    tandemq_app: TandemQ, changes: dict[str, Any], field: str
) -> None:
    given: dict[str, Any] = {"name": "shop", "roles": ["read"], **changes}
    with pytest.raises(InvalidTask) as refused:
        tandemq_app.tokens.create(given.pop("name"), given.pop("roles"), **given)
    assert refused.value.field == field
    assert tandemq_app.tokens.list() == []
    assert tandemq_app.audit().items == ()


def test_a_token_where_a_name_belongs_is_not_repeated(tandemq_app: TandemQ) -> None:
    made = tandemq_app.tokens.create("shop", ["read"])
    secret = made.text.rpartition(made.id)[2]
    for attempt in (
        lambda: tandemq_app.tokens.revoke(made.text),
        lambda: tandemq_app.tokens.create(made.text, ["read"]),
    ):
        with pytest.raises(InvalidTask) as refused:
            attempt()
        assert secret not in str(refused.value)
    with pytest.raises(InvalidType):
        tandemq_app.tokens.revoke(5)  # type: ignore[arg-type]
    assert [t.state for t in tandemq_app.tokens.list()] == ["live"]


def test_the_json_shape(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    made = tandemq_app.tokens.create("shop", {"operate", "read"}, expires=90, who="ada")
    (token,) = tandemq_app.tokens.list()
    shape = token.to_json()
    assert shape == {
        "id": made.id, "name": "shop", "roles": ["read", "operate"], "rate": 0.0, "state": "live",
        "created_at": "2030-01-01T00:00:00.000000Z", "created_by": "ada",
        "expires_at": "2030-01-01T00:01:30.000000Z", "revoked_at": None, "last_used_at": None,
    }  # fmt: skip


def test_roles_are_those_of_the_api() -> None:
    from tandemq.http.routing import Role

    assert tuple(Role) == ROLES
    assert ordered(set(Role)) == list(ROLES)


def test_the_secret_is_256_bits() -> None:
    secret = ids.api_token()[1]
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secret)
    assert len(secret) * 6 >= 256
