"""One-line breakages of the product, each of which the model must find: a model that finds nothing proves nothing.

Each is an edit of one function's text, made in this process and taken back. An edit that no longer fits fails.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.model.stage import Command


class Edit(NamedTuple):
    """``where``: module:qualified name of a function."""

    where: str
    old: str
    new: str


class Mutant(NamedTuple):
    """``commands`` lead straight to where it shows; the product as it is passes them."""

    name: str
    commands: Sequence[Command]
    edits: Sequence[Edit]


STATEMENTS, LEASING = "tandemq.store.statements:Statements", "tandemq.store.leasing:LeasingStore"
CANCEL_AT_ONCE = (
    "tx.write(\"UPDATE tandemq_tasks SET status = 'cancelled', ended = 3 WHERE id = \" + str(task_id));"
    ' return "cancelled"'
)
NO_TOKEN = Edit(f"{STATEMENTS}.guard", 'return f"{where} AND lease_token = {int(tokens.pop())}"', "return where")

# Numbers as Model's methods have them. Every fourth task ends at once; the others run until they are told to end.
AT_CLAIM, AT_FINISH, AT_END_LEASE, AT_GIVE_BACK, NOWHERE = 2, 3, 0, 7, 35
BOTH, SUPERVISOR, SLOTS = 0, 1, 3
OK, FAIL, STOP = 0, 2, 6
TYPE = 2
BEFORE, AFTER = 0, 1
TURNS: list[Command] = [["turn", 0], ["turn", 1]]
#: The reconcilers have had their lease of contact with the database.
ARMED: list[Command] = [["calm_turn"]] * 14
#: Four tasks; two run at the first worker, one at the second.
RUN: list[Command] = [["calm_turn"], ["calm_turn"], ["batch", 0, 3, 2], ["calm_turn"], *TURNS]
RUN_ONCE: list[Command] = [["calm_turn"], ["calm_turn"], ["batch", 0, 0, 2], ["calm_turn"], *TURNS]
CALM: list[Command] = [["calm_turn"]] * 3

MUTANTS = [
    Mutant(
        "renew by upsert",
        [*ARMED, *RUN, ["outlive", 0, BOTH, NOWHERE], ["turn", 0]],
        [
            Edit(
                f"{STATEMENTS}.renew",
                'f"UPDATE {self.claims} SET expires_at = {d.after()} WHERE lease_token = {d.p} AND worker_id = {d.p}"',
                "f\"INSERT INTO {self.claims} (expires_at, lease_token, worker_id, ids) VALUES ({d.after()}, {d.p},"
                " {d.p}, '') \" + d.overwrite('lease_token', ['expires_at'])",
            )
        ],
    ),
    Mutant(
        "renew by worker alone",
        [*RUN, ["batch", 0, 3, 0], ["barrier", AT_CLAIM], ["advance", 1], ["turn", 1],
         ["fault", 1, AFTER], ["advance", 2], ["turn", 1]],
        [Edit(f"{STATEMENTS}.renew", "WHERE lease_token = {d.p} AND", "WHERE {d.p} IS NOT NULL AND")],
    ),
    Mutant(
        "finish without the token guard",
        [*ARMED, *RUN, ["outlive", 0, BOTH, NOWHERE], ["turn", 1], ["end", 0, OK], ["turn", 0]],
        [NO_TOKEN],
    ),
    Mutant(
        "expire without asking again",
        [*ARMED, *RUN, ["outlive", 0, SUPERVISOR, AT_END_LEASE], ["turn", 0], ["let_go", 0], *TURNS],
        [
            Edit(
                f"{LEASING}._end_expired",
                "return tx.write(sql, [token]) > 0",
                "tx.write(self.sql.delete_claim(), [token]); return True",
            )
        ],
    ),
    Mutant(
        "end a lease by ids without the token",
        [
            *ARMED, *RUN, ["die", 0, 0, 0], ["barrier", AT_END_LEASE], ["turn", 0], *[["calm_turn"]] * 25,
            ["let_go", 0],
            *TURNS,
        ],
        [Edit(f"{LEASING}.end_lease", "r.token == token and r.status", "r.status"), NO_TOKEN],
    ),
    Mutant(
        "give back without the token",
        [
            *CALM, ["batch", 0, 3, 2], ["barrier", AT_CLAIM], ["turn", 0], ["fault", 1, BEFORE],
            ["barrier", AT_GIVE_BACK], ["advance", 1], ["turn", 0], *CALM, ["let_go", 0], ["turn", 0],
        ],
        [Edit(f"{LEASING}.give_back", "if r.token == token]", "]"), NO_TOKEN],
    ),
    Mutant(
        "claim without its claims row",
        RUN,
        [
            Edit(
                "tandemq.store.claiming:ClaimingStore._claim_at_once",
                "tx.commit(look, move, keep)",
                "tx.commit(look, move)",
            )
        ],
    ),
    Mutant(
        "the claims row goes with the first verdict",
        RUN,
        [Edit("tandemq.worker.acker:Acker._flush", "if batch.unsettled.issubset(ids)]", "]")],
    ),
    Mutant(
        "a finish that failed counts as sent",
        [*RUN, ["barrier", AT_FINISH], ["end", 0, OK], ["turn", 0], ["fault", 1, BEFORE]],
        [Edit("tandemq.worker.acker:Acker._flush", "self._away = True\n        return items", "return []")],
    ),
    Mutant(
        "hand-back leaves the row running",
        [*RUN, ["batch", 0, 3, 3], ["batch", 0, 3, 3], ["end", 0, OK], *CALM],
        [Edit(f"{STATEMENTS}.release", "SET {target(Event.RELEASE)}, ", "SET ")],
    ),
    Mutant(
        "begin without looking at the lease",
        [*ARMED, ["batch", 0, 3, 2], ["outlive", 0, SLOTS, NOWHERE], ["step", 0, 4, 7]],
        [Edit("tandemq.worker.arena:Batch.begin", "if now >= deadline or lost or", "if")],
    ),
    Mutant(
        "a renewal believed for too long",
        [*ARMED, ["batch", 0, 3, 2], ["outlive", 0, SLOTS, NOWHERE], ["step", 0, 4, 7]],
        [Edit("tandemq.worker.leases:LeaseKeeper._renew", "sent + begin_within_s", "sent + 10 * begin_within_s")],
    ),
    Mutant(
        "an unknown claim is forgotten and renewed",
        [["batch", 0, 3, 2], ["barrier", AT_CLAIM], ["turn", 0], ["fault", 1, AFTER]],
        [Edit("tandemq.worker.fetcher:Fetcher._recover", "self._put_back(level, ids)", "batch.held(ids); return")],
    ),
    Mutant(
        "cancel a running row at once",
        [*RUN, ["cancel", 1, 1]],
        [
            Edit(
                "tandemq.store.cancelling:CancellingStore.cancel",
                "changed = tx.write(self.sql.request_cancel(), [task_id])",
                CANCEL_AT_ONCE,
            )
        ],
    ),
    Mutant(
        "a retry drops the cancel request",
        [*RUN, ["cancel", 1, 1], ["end", 0, FAIL], *TURNS],
        [
            Edit(
                "tandemq.store.settling:Settling.event",
                "Event.CANCEL_RUNNING if self.row.cancel else Event.RETRY",
                "Event.RETRY",
            )
        ],
    ),
    Mutant(
        "a run that stopped on request is dead",
        [*RUN, ["cancel", 1, 1], *CALM, ["end", 0, STOP], *TURNS],
        [
            Edit(
                "tandemq.store.held:Settling.event",
                "Event.CANCEL_RUNNING if yields and self.row.cancel else Event.BURY",
                "Event.BURY",
            )
        ],
    ),
    Mutant(
        "the neighbours of what does not stop are cancelled as well",
        [*RUN, ["kill", 1, 1], *[["calm_turn"]] * 10],
        [Edit("tandemq.worker.process:ChildProcess.unstoppable", " if (token, task_id) in late", "")],
    ),
    Mutant(
        "a request costs the process",
        [*RUN, ["cancel", 1, 1], *[["calm_turn"]] * 10],
        [
            Edit(
                "tandemq.worker.process:ChildProcess.asked_to_stop",
                "frozenset(doomed) & self._asked.keys()",
                "frozenset(self._asked)",
            )
        ],
    ),
    Mutant(
        "a paused type is claimed",
        [*CALM, ["hold", TYPE, 0, 1], *CALM, ["batch", 0, 3, 2], *CALM],
        [
            Edit("tandemq.store.claiming:_sort", "elif row.task_type in paused:", "elif False:"),
            Edit("tandemq.store.claiming:_leases", "if task_type in paused:", "if False:"),
        ],
    ),
    Mutant(
        "held tasks wait for the end of the hour",
        [*CALM, ["hold", TYPE, 0, 1], *CALM, ["batch", 0, 3, 2], *CALM],
        [Edit("tandemq.store.pausing:PausingStore.release_held", "if mine:", "if False:")],
    ),
    Mutant(
        "nobody wakes what a dead operator has resumed",
        [*CALM, ["hold", TYPE, 0, 1], *CALM, ["batch", 0, 3, 2], *CALM],
        [Edit("tandemq.reconciler.reconciler:Reconciler._wake", "range(WAKE_CHUNKS)", "range(0)")],
    ),
    Mutant("attempt not counted", RUN, [Edit(f"{STATEMENTS}.claim", "attempts = attempts + 1, ", "")]),
    Mutant("fence not raised", RUN, [Edit(f"{STATEMENTS}.claim", " fence = fence + 1,", "")]),
    Mutant(
        "claim before it is due",
        [*CALM, ["enqueue", 0, 3, 3, 7, 0, 1], ["stale", 0, 0, 1], *CALM],
        [Edit(f"{STATEMENTS}.claim_lock", " AND run_at <= {self.d.now}", "")],
    ),
    Mutant(
        "replay without the status guard",
        [["batch", 0, 3, 2], ["cancel", 0, 1], ["replay", 0, 0], ["replay", 0, 1], ["client", 0]],
        [
            Edit("tandemq.store.queries:Queries.lock_for_replay", " AND {sources(Event.REPLAY)}{ended}", "{ended}"),
            Edit(f"{STATEMENTS}.replay", " AND {sources(Event.REPLAY)}", ""),
        ],
    ),
    Mutant(
        "purge without the status guard",
        [["batch", 0, 0, 2], ["cancel", 3, 1], ["purge", 0, 0], ["replay", 0, 1], ["client", 0]],
        [
            Edit("tandemq.store.looking:Looks._removable", " AND status IN ({wanted}){further}", "{further}"),
            Edit(f"{STATEMENTS}.purge", " AND t.status IN ({final})", ""),
        ],
    ),
    Mutant(
        "clear the token",
        [*RUN, ["end", 0, FAIL], *TURNS],
        [Edit(f"{STATEMENTS}.retry", "SET {target(Event.RETRY)}", "SET lease_token = 0, {target(Event.RETRY)}")],
    ),
    Mutant(
        "begun tasks of a dead child are handed back",
        [*RUN_ONCE, ["die", 0, 0, 0], *CALM],
        [Edit("tandemq.worker.leases:Ending._outcome", "if state not in {State.BEGUN, State.ENDED}:", "if True:")],
    ),
    Mutant(
        "an interrupted run without retries is handed back",
        [*RUN_ONCE, ["drain", 0, 0], *CALM],
        [Edit("tandemq.worker.leases:decide", "if begun and attempt.max_retries == 0:", "if False:")],
    ),
    Mutant(
        "one attempt too many",
        [*RUN_ONCE, ["end", 0, FAIL], *TURNS],
        [Edit("tandemq.core.lifecycle:_again", "if attempt.is_last:", "if False:")],
    ),
    Mutant(
        "the window pushes nothing",
        [["batch", 0, 3, 2], ["lose", 0, 0]],
        [Edit("tandemq.reconciler.window:Window.look", "if lost:", "if False:")],
    ),
    Mutant(
        "nobody expires",
        [*RUN, ["die", 0, 2, 0]],
        [Edit("tandemq.reconciler.expiry:Expiry.turn", "for claim in claims:", "for claim in ():")],
    ),
]  # fmt: skip


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """The product with these edits."""
    with pytest.MonkeyPatch.context() as patch:
        for edit in edits:
            owner, name, found = _find(edit.where)
            fn = found.fget if isinstance(found, property) else found
            text = textwrap.dedent(inspect.getsource(fn))
            lines = text.splitlines()
            while lines[0].startswith("@"):
                del lines[0]
            text = "\n".join(lines)
            assert edit.old in text, f"{edit.where} no longer holds {edit.old!r}"
            flags = annotations.compiler_flag
            made: dict[str, Any] = {}
            exec(compile(text.replace(edit.old, edit.new, 1), edit.where, "exec", flags), fn.__globals__, made)  # noqa: S102
            patch.setattr(owner, name, property(made[name]) if isinstance(found, property) else made[name])
        yield


def _find(where: str) -> tuple[Any, str, Any]:
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, inspect.getattr_static(owner, name)
