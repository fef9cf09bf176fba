"""Tokens of the HTTP API. Every change shares its transaction with a row of the audit log."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tandemq.core.audit import MAX_WHO, Deed
from tandemq.core.errors import StoreRefused
from tandemq.core.tokens import LiveToken, LiveTokens, NewToken, Token, ordered
from tandemq.store.auditing import AuditingStore
from tandemq.store.database import Abandon
from tandemq.store.dialects import NEVER, NOT_YET, instant, instant_or_none, micros
from tandemq.store.transaction import Duplicate, Tx

#: Uses of one token are noted at most so often, whoever notes them.
NOTED_EVERY_S = 60.0


class TokensStore(AuditingStore):
    """``store.questions.TokenKeeping``."""

    def add_token(self, new: NewToken, *, deed: Deed) -> None:
        """See the protocol."""
        deed.entry = self.db.write(lambda tx: self._add(tx, new, deed), repeatable=True)

    def tokens(self) -> list[Token]:
        """See the protocol."""
        now = self.db.dialect.now
        sql = (
            "SELECT id, name, roles, rate, created_at, created_by, expires_at, revoked_at, last_used_at,"
            f" expires_at <= {now} FROM {self.sql.api_tokens} ORDER BY created_at DESC, id"
        )
        return [_token(row) for row in self.db.read(lambda tx: tx.rows(sql))]

    def live_tokens(self) -> LiveTokens:
        """See the protocol."""
        p, now = self.db.dialect.p, self.db.dialect.now
        live = (
            f"SELECT id, name, roles, hash, rate, expires_at, {now} FROM {self.sql.api_tokens}"
            f" WHERE revoked_at = {p} AND expires_at > {now}"
        )

        def work(tx: Tx) -> LiveTokens:
            if rows := tx.rows(live, [NOT_YET]):
                return LiveTokens(tuple(map(_live, rows)), any_ever=True)
            return LiveTokens((), any_ever=tx.one(f"SELECT 1 FROM {self.sql.api_tokens} LIMIT 1") is not None)

        return self.db.read(work)

    def revoke_tokens(self, ids: Collection[str], *, deed: Deed) -> int:
        """See the protocol."""
        d, wanted = self.db.dialect, sorted(ids)
        sql = (
            f"UPDATE {self.sql.api_tokens} SET revoked_at = {d.now}"
            f" WHERE id IN ({_marks(d.p, wanted)}) AND revoked_at = {d.p}"
        )

        def work(tx: Tx) -> tuple[int, int]:
            revoked = tx.write(sql, [*wanted, NOT_YET])
            return revoked, self._note(tx, deed, revoked)

        revoked, deed.entry = self.db.write(work, repeatable=True) if wanted else (0, 0)
        return revoked

    def note_tokens_used(self, ids: Collection[str]) -> None:
        """See the protocol."""
        d, wanted = self.db.dialect, sorted(ids)
        sql = (
            f"UPDATE {self.sql.api_tokens} SET last_used_at = {d.now}"
            f" WHERE id IN ({_marks(d.p, wanted)}) AND last_used_at < {d.before()}"
        )
        if wanted:
            self.db.write(lambda tx: tx.write(sql, [*wanted, micros(NOTED_EVERY_S)]), repeatable=True)

    def _add(self, tx: Tx, new: NewToken, deed: Deed) -> int:
        d = tx.dialect
        expires = f"'{NEVER}'" if new.expires_s is None else d.after()
        sql = (
            f"INSERT INTO {self.sql.api_tokens} (id, name, roles, hash, rate, created_by, created_at, expires_at)"
            f" VALUES ({', '.join([d.p] * 6)}, {d.now}, {expires})"
        )
        who = deed.who.encode("utf-8", "replace").decode()[:MAX_WHO]
        values: list[Any] = [new.id, new.name, ",".join(ordered(new.roles)), new.hash, new.rate, who]
        try:
            tx.insert(sql, values if new.expires_s is None else [*values, micros(new.expires_s)])
        except Duplicate:
            # Sent again after an answer that was lost: it is stored, and its audit row with it.
            row = tx.one(f"SELECT hash FROM {self.sql.api_tokens} WHERE id = {d.p}", [new.id])
            if row is not None and row[0] == new.hash:
                raise Abandon(0) from None
            raise StoreRefused("another token has the id that was drawn; try again") from None
        return self._note(tx, deed, 1)


def _marks(p: str, values: Collection[str]) -> str:
    return ", ".join([p] * len(values))


def _roles(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _token(row: Any) -> Token:
    token_id, name, roles, rate, created_at, created_by, expires_at, revoked_at, last_used_at, is_over = row
    revoked = instant_or_none(revoked_at)
    return Token(
        id=token_id,
        name=name,
        roles=_roles(roles),
        rate=float(rate),
        state="revoked" if revoked else "expired" if is_over else "live",
        created_at=instant(created_at),
        created_by=created_by,
        expires_at=instant_or_none(expires_at),
        revoked_at=revoked,
        last_used_at=instant_or_none(last_used_at),
    )


def _live(row: Any) -> LiveToken:
    token_id, name, roles, hashed, rate, expires_at, now = row
    end = instant_or_none(expires_at)
    left_s = None if end is None else (end - instant(now)).total_seconds()
    return LiveToken(token_id, name, _roles(roles), bytes.fromhex(hashed), float(rate), left_s)
