"""Claim, renew, finish, end: every write after the claim is guarded by (id, token, running)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tandemq.core.errors import PayloadTooLarge, StoreRefused
from tandemq.core.lifecycle import Bury, Event, Failure, Release, RetryIn, Status, Succeed, Verdict
from tandemq.core.task import Lease
from tandemq.store.answers import Claim, Moved, Settled, Settlement
from tandemq.store.base import holder
from tandemq.store.claiming import ClaimingStore
from tandemq.store.database import Abandon, LockWait
from tandemq.store.dialects import instant, micros
from tandemq.store.held import Again, Held, Settling, same_again
from tandemq.store.protocol import Judge
from tandemq.store.settling import MAX_TEXT_BYTES, Counts
from tandemq.store.transaction import Mismatch, OwnTx, Step, Tx

#: How long after it was sent a claim may still arrive: longer than TCP goes on sending.
LATE_S = 3600.0
REFUSED_TEXT = "the database refused the text of this verdict; it was left out"


class LeasingStore(ClaimingStore):
    """``store.protocol.Leasing``."""

    def renew(self, tokens: Collection[int], *, worker_id: str, lease_s: float) -> set[int]:
        """Extend claims that nobody has ended; returns the tokens that still stand. The others are lost."""
        me, sql, named = holder(worker_id), self.sql.renew(), sorted(tokens)

        def work(tx: OwnTx) -> set[int]:
            done = tx.commit(*[Step(sql, [micros(lease_s), token, me]) for token in named])
            return {token for token, result in zip(named, done, strict=True) if result.matched}

        # Sent twice it extends twice: harmless, so a lost answer is not passed on.
        return self.db.write(work, repeatable=True) if tokens else set()

    def cancel_requested(self, ids: Collection[int]) -> set[int]:
        """Which of these have a cancel request (plain read by primary key)."""
        if not ids:
            return set()
        return {row[0] for row in self.db.read(lambda tx: tx.rows(self.queries.cancel_requested(ids)))}

    def finish(
        self, settlements: Sequence[Settlement], *, closing: Collection[int], worker_id: str, again: bool = False
    ) -> Settled:
        """Write verdicts; see the protocol.

        Successes alone are one UPDATE. Anything else, and anything unexpected, locks the rows first and decides by what
        it finds. A text that the database refuses is halved out of the batch and stored without its text.
        """
        if not settlements:
            if closing:
                self.db.write(lambda tx: tx.commit(*self._closing(closing)), repeatable=True)
            return Settled()
        fast = None if again else _fast(settlements)
        try:
            if fast is not None:
                with suppress(LockWait, Mismatch):
                    return self.db.write(
                        lambda tx: self._succeed_all(tx, fast, settlements, closing),
                        lock_waits=0,
                        crash="finish.before_commit",
                    )
            ordered = sorted(settlements, key=lambda s: s.lease.id)
            return self.db.write(
                lambda tx: self._finish_held(tx, ordered, closing, holder(worker_id)), crash="finish.before_commit"
            )
        except (StoreRefused, PayloadTooLarge):
            return self._finish_in_halves(settlements, closing, worker_id)

    def give_back(self, token: int, ids: Sequence[int]) -> Settled:
        """After a claim whose answer was lost: hand back what of ``ids`` carries the token, and close it for good.

        Waits for the old session while that holds the rows, so it is right whether the claim was committed or not; and
        a claim that arrives only now is refused, by a claims row without tasks that runs out by itself.
        """

        def work(tx: OwnTx) -> Settled:
            rows = [r for r in self._held(tx, ids, wait=True) if r.token == token]
            mine = [Settling(r, r.lease(), Release()) for r in rows if r.status == Status.RUNNING]
            given_back = [r for r in rows if r.status == Status.PENDING]
            before = [Again(r, _as_claimed(r), Release(), Event.RELEASE) for r in given_back]
            answers, counts = self.settler.settle(tx, mine)
            answers += self.settler.repeat(tx, before)
            closed = Step(self.sql.close_for_good(), [token, micros(LATE_S)])
            tx.commit(closed, *self.settler.counting(counts))
            return Settled(moved=tuple(answers))

        return self.db.write(work, repeatable=True)

    def expired_claims(self, limit: int) -> list[Claim]:
        """Claims past their end, oldest first, read without locks."""
        rows = self.db.read(lambda tx: tx.rows(self.queries.expired_claims(), [limit]))
        return [Claim(token, worker, instant(at), _ids(ids)) for token, worker, at, ids in rows]

    def end_lease(
        self, token: int, ids: Sequence[int], *, judge: Judge, worker_id: str, expired_only: bool
    ) -> Settled | None:
        """End the lease: judge its running rows, then delete its claims row, in one transaction; see the protocol."""

        def work(tx: OwnTx) -> Settled:
            rows = self._held(tx, ids, full=True)
            missing = set(ids) - {r.id for r in rows}
            locked = {i for i, t in self._tokens_of_locked(tx, missing).items() if t == token}
            mine = [r for r in rows if r.token == token and r.status == Status.RUNNING]
            judged = [(r, r.lease()) for r in mine]
            settling = [Settling(r, lease, v) for r, lease in judged if (v := judge(lease)) is not None]
            answers, counts = self.settler.settle(tx, settling)
            stays = bool(locked) or len(settling) < len(mine)
            if expired_only and not self._end_expired(tx, token, stays=stays):
                raise Abandon
            closing = () if expired_only or stays else (token,)
            tx.commit(*self._closing(closing), *self.settler.counting(counts))
            return Settled(moved=tuple(answers), locked=tuple(sorted(locked)))

        return self.db.write(work, crash="expire.before_commit")

    def _end_expired(self, tx: Tx, token: int, *, stays: bool) -> bool:
        # Asked in the transaction that moved the tasks: no row means renewed meanwhile, and all of it is rolled back.
        sql = self.sql.disown_expired_claim() if stays else self.sql.delete_expired_claim()
        return tx.write(sql, [token]) > 0

    def _succeed_all(
        self, tx: OwnTx, fast: _Fast, settlements: Sequence[Settlement], closing: Collection[int]
    ) -> Settled:
        """One packet. Mismatch: a row was finished before, cancelled or fenced; find out which."""
        step = Step(self.sql.succeed(fast.pairs, fast.with_result, []), fast.results, expect=len(fast.pairs))
        tx.commit(step, *self._closing(closing), *self.settler.counting(fast.counts))
        return Settled(succeeded=tuple([lease for lease, _ in settlements]), counts=fast.counts)

    def _finish_held(
        self, tx: OwnTx, settlements: Sequence[Settlement], closing: Collection[int], worker_id: str
    ) -> Settled:
        recorded = [s.lease for s in settlements if isinstance(s.verdict, Succeed) and s.verdict.recorded]
        settlements = [s for s in settlements if not (isinstance(s.verdict, Succeed) and s.verdict.recorded)]
        rows = {r.id: r for r in self._held(tx, [s.lease.id for s in settlements])} if settlements else {}
        committed = self._tokens_of_locked(tx, [s.lease.id for s in settlements if s.lease.id not in rows])
        live: dict[tuple[int, int], Settling] = {}
        again: list[Again] = []
        fenced: list[tuple[Held, Lease, Verdict]] = []
        gone: list[int] = []
        locked: list[Lease] = []
        for lease, verdict in ((s.lease, s.verdict) for s in settlements):
            row = rows.get(lease.id)
            if row is None:
                # A locked row whose committed token is another's will never be ours again.
                (locked.append(lease) if committed.get(lease.id) == lease.token else gone.append(lease.id))
            elif row.token == lease.token and row.status == Status.RUNNING:
                live.setdefault((lease.id, lease.token), Settling(row, lease, verdict))
            elif row.token == lease.token and (event := same_again(row, verdict)) is not None:
                again.append(Again(row, lease, verdict, event))
            else:
                fenced.append((row, lease, verdict))
        again = self._told_apart(tx, again, fenced)
        answers, counts = self.settler.settle(tx, list(live.values()))
        answers += self.settler.repeat(tx, again)
        answers += [Moved.of_success(lease) for lease in recorded]
        # Committed by their own transactions, which left the counters to this one.
        recorded += [a.lease for a in again if a.event is Event.SUCCEED and not isinstance(a.verdict, Succeed)]
        counts.update((lease.queue, lease.task_type, Status.SUCCEEDED.value) for lease in recorded)
        self.settler.record_fenced(tx, fenced, worker_id)
        closed = set(closing) - {lease.token for lease in locked}
        tx.commit(*self._closing(closed), *self.settler.counting(counts))
        return Settled(
            moved=tuple(answers),
            fenced=tuple(sorted([*gone, *(row.id for row, _, _ in fenced)])),
            locked=tuple(lease.id for lease in locked),
        )

    def _told_apart(self, tx: Tx, again: Sequence[Again], fenced: list[tuple[Held, Lease, Verdict]]) -> list[Again]:
        """Those that were written before indeed; the others are late, and go to ``fenced``.

        A rescue or a hand-back by others leaves the row pending under the same token: only the outcome in the history
        and the attempt that is given back tell whose doing it was.
        """
        retries = [a.row.id for a in again if isinstance(a.verdict, RetryIn) and a.event is not Event.SUCCEED]
        outcomes = set(map(tuple, tx.rows(self.queries.outcomes_of(retries)))) if retries else set()
        written: list[Again] = []
        for one in again:
            row, lease, verdict, event = one
            ours = True
            if row.id in retries and isinstance(verdict, RetryIn):
                ours = (row.id, lease.fence, verdict.outcome) in outcomes
            elif row.status == Status.PENDING and event is not Event.SUCCEED:
                ours = row.attempts < lease.attempt
            (written.append(one) if ours else fenced.append((row, lease, verdict)))
        return written

    def _finish_in_halves(self, settlements: Sequence[Settlement], closing: Collection[int], worker_id: str) -> Settled:
        """Halve until the culprit is alone; that one is stored without its text."""
        if len(settlements) == 1:
            (only,) = settlements
            bare = _without_text(only)
            if bare == only:
                raise StoreRefused(f"the database refuses the verdict of task {only.lease.id} even without its text")
            return self.finish([bare], closing=closing, worker_id=worker_id)
        half = len(settlements) // 2
        first = self.finish(settlements[:half], closing=(), worker_id=worker_id)
        # The claims row goes with the last half, and only if nothing of it is left in the first.
        left = {s.lease.token for s in settlements if s.lease.id in first.locked}
        second = self.finish(settlements[half:], closing=set(closing) - left, worker_id=worker_id)
        return Settled(first.moved + second.moved, first.fenced + second.fenced, first.locked + second.locked)

    def _held(self, tx: Tx, ids: Iterable[int], *, wait: bool = False, full: bool = False) -> list[Held]:
        return [Held(*row) for row in tx.rows(self.queries.held(sorted(set(ids)), wait=wait, full=full))]

    def _tokens_of_locked(self, tx: Tx, missing: Collection[int]) -> dict[int, int]:
        """Committed tokens of rows that could not be locked; rows that do not exist are left out."""
        return {row[0]: row[1] for row in tx.rows(self.queries.tokens(missing))} if missing else {}

    def _closing(self, tokens: Collection[int]) -> list[Step]:
        return [Step(self.sql.delete_claim(), [token]) for token in sorted(tokens)]


def _as_claimed(row: Held) -> Lease:
    """The lease of a row whose attempt has been given back since."""
    return row.lease()._replace(attempt=row.attempts + 1)


class _Fast(NamedTuple):
    """Successes whose results fit one statement, each row once."""

    pairs: list[tuple[int, int]]
    with_result: list[int]
    results: list[str]
    counts: Counts


def _fast(settlements: Sequence[Settlement]) -> _Fast | None:
    pairs: list[tuple[int, int]] = []
    with_result: list[int] = []
    results: list[str] = []
    kinds: list[tuple[str, str, str]] = []
    succeeded = Status.SUCCEEDED.value
    for lease, verdict in settlements:
        if type(verdict) is not Succeed or verdict.note or verdict.recorded:
            return None
        pairs.append((lease.id, lease.token))
        kinds.append((lease.queue, lease.task_type, succeeded))
        if verdict.result is not None:
            with_result.append(lease.id)
            results.append(verdict.result)
    if sum(map(len, results)) > MAX_TEXT_BYTES or len(dict(pairs)) != len(pairs):
        return None
    return _Fast(pairs, with_result, results, Counter(kinds))


def _without_text(settlement: Settlement) -> Settlement:
    bare = Failure("TextRefused", REFUSED_TEXT)
    match settlement.verdict:
        case Succeed():
            return settlement._replace(verdict=Succeed(None, REFUSED_TEXT))
        case RetryIn() | Bury() as verdict:
            return settlement._replace(verdict=replace(verdict, failure=bare))
        case Release(failure) if failure is not None:
            return settlement._replace(verdict=Release(bare))
        case _:
            return settlement


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(i) for i in text.split(",") if i.isdigit())
