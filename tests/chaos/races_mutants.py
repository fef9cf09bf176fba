"""One-line breakages of the product, each of which must turn its race red: ``python -m tests.chaos.races_mutants``.

By hand, about five minutes: each is applied to a copy of ``src`` that the races then import. A mutant that survives, or
whose text is no longer in the file, is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.chaos.races import SPECS

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """``races``: names that must all turn red."""

    file: str
    old: str
    new: str
    races: tuple[str, ...]


CLAIM_LOCK = " AND {sources(Event.CLAIM)} AND run_at <= {self.d.now} ORDER BY id {self.d.skip_locked}"
UNDONE = "if r.token == token and r.status == Status.RUNNING]"
CANCEL = "Event.CANCEL: Move(frozenset({Status.PENDING})"
EXPIRED = ' WHERE lease_token = {self.d.p} AND expires_at <= {self.d.now}"'
SAME_SUCCESS = "return Event.SUCCEED if row.status == Status.SUCCEEDED else None"
KEEPS_KEYS = "AND (idempotency_key IS NULL OR completed_at <= {self.d.before()})"

MUTANTS = (
    # claim: without the lock, without the status, without the due time; one packet without its condition
    Mutant(
        "store/statements.py", CLAIM_LOCK, CLAIM_LOCK.replace(" {self.d.skip_locked}", ""),
        ("claim x claim", "reschedule of an unknown type x claim"),
    ),
    Mutant(
        "store/statements.py", CLAIM_LOCK, CLAIM_LOCK.replace("{sources(Event.CLAIM)}", "1 = 1"),
        ("cancel x claim", "replay x claim", "promote x cancel", "repush x claim", "rebuild x claim"),
    ),
    Mutant(
        "store/statements.py", CLAIM_LOCK, CLAIM_LOCK.replace(" AND run_at <= {self.d.now}", ""),
        ("retry for later x claim",),
    ),
    Mutant(
        "store/transaction.py", "texts.append(_EXPECT.format(counter, step.expect))", 'texts.append("SELECT 1")',
        (
            "claim x claim, in one packet", "cancel x claim, in one packet",
            "reschedule of an unknown type x claim, in one packet",
        ),
    ),
    # cancel: begun although it is known, forgotten by a way back to pending, too strong, of a dead task
    Mutant(
        "worker/arena.py", "or lost or _U32.unpack_from(self._map, at + _CANCEL)[0]:", "or lost:", ("cancel x begin",)
    ),
    Mutant(
        "store/held.py", "return Event.CANCEL_RUNNING if self.row.cancel else Event.RETRY", "return Event.RETRY",
        ("cancel x retry", "cancel x rescue"),
    ),
    Mutant(
        "core/lifecycle.py", CANCEL, CANCEL.replace("PENDING", "PENDING, Status.RUNNING"),
        ("cancel x finish", "transaction x cancel"),
    ),
    Mutant("core/lifecycle.py", CANCEL, CANCEL.replace("PENDING", "PENDING, Status.DEAD"), ("replay x cancel",)),
    # finish: without its guard, without the token; what counts as the same word twice
    Mutant(
        "store/statements.py", "        tokens = {t for _, t in pairs}",
        '        return f"WHERE id IN ({id_list(i for i, _ in pairs)})"',
        ("retry x finish of a zombie", "expire x finish", "claim x finish of a zombie"),
    ),
    Mutant(
        "store/statements.py", 'return f"{where} AND lease_token = {int(tokens.pop())}"', "return where",
        ("two finishes with different tokens", "claim x finish of a zombie"),
    ),
    Mutant("store/held.py", SAME_SUCCESS, "return None", ("two finishes with the same token",)),
    Mutant(
        "store/held.py", SAME_SUCCESS, "return Event.SUCCEED", ("two finishes with the same token, other verdicts",)
    ),
    Mutant(
        "store/held.py", "return Event.RELEASE if isinstance(verdict, Release) else Event.RETRY", "return None",
        ("two retries with the same token",),
    ),
    Mutant(
        "store/leasing.py", "again = self._told_apart(tx, again, fenced)", "again = list(again)",
        ("expire x retry", "expire x hand back"),
    ),
    Mutant("store/leasing.py", "else gone.append(lease.id))", "else None)", ("prune x late finish",)),
    Mutant(
        "store/handling.py", "if self._finish(lease, result, note) != 1:", "if self._finish(lease, result, note) > 1:",
        ("transaction x rescue", "transaction x transaction of a zombie"),
    ),
    # handing back: not pushed, not closed for good, not waited for, of somebody else
    Mutant("redeliver.py", "first.setdefault(move.level, []).append(move.id)", "continue", ("hand back x claim",)),
    Mutant(
        "store/leasing.py", "Step(self.sql.close_for_good(), [token, micros(LATE_S)])",
        "Step(self.sql.delete_claim(), [token])", ("give back x late claim, in one packet",),
    ),
    Mutant(
        "store/leasing.py", "Release()) for r in rows if r.status == Status.RUNNING]", "Release()) for r in ()]",
        ("give back x late claim",),
    ),
    Mutant(
        "store/leasing.py", "self._held(tx, ids, wait=True) if r.token == token]", "self._held(tx, ids, wait=True)]",
        ("give back, sent again, x next claim",),
    ),
    # ending: of what was renewed, of what has moved on, of another token; a lost lease that its worker is not told of
    Mutant("store/statements.py", f"DELETE FROM {{self.claims}}{EXPIRED}",
           'DELETE FROM {self.claims} WHERE lease_token = {self.d.p}"', ("expire x renew",)),
    Mutant("worker/leases.py", "child.arena.set_lost(snapshot.index, token)", "pass", ("expire x renew",)),
    Mutant(
        "store/leasing.py", UNDONE, "if r.token == token]", ("expire x expire", "end of a dead child x its last finish")
    ),
    Mutant("store/surveying.py", UNDONE, "if r.token == token]", ("sweep of an orphan x its finish",)),
    Mutant(
        "store/surveying.py", UNDONE, "if r.status == Status.RUNNING]", ("sweep of a suspect x its next claim",)
    ),
    Mutant(
        "store/queries.py", 'f" AND {sources(Event.DISCARD)} AND expires_at', 'f" AND expires_at',
        ("discard of an expired task x claim",),
    ),
    # people: a replay that does not lock, a key that is not kept, an old task given out as a new one, or pushed again
    Mutant(
        "store/queries.py", "AND {sources(Event.REPLAY)}{ended} ORDER BY id {d.skip_locked}",
        "AND {sources(Event.REPLAY)}{ended} ORDER BY id", ("replay x replay", "replay x purge", "replay x prune"),
    ),
    Mutant(
        "store/inserting.py", "return Inserted(task_id, False,", "return Inserted(task_id, True,",
        ("purge of a keyed row x enqueue", "prune of a keyed row x enqueue"),
    ),
    Mutant(
        "producer.py", "for row in inserted if row.created]", "for row in inserted]",
        ("enqueue x enqueue with one key",),
    ),
    # Redis: an id that stays where it was, the wrong end, scripts that do not look first
    Mutant(
        "broker/lua/promote.lua", "redis.call('ZREM', KEYS[1], unpack(due))", "",
        ("promote x promote", "promote x prune"),
    ),
    Mutant("reconciler/generation.py", "first=not mark.cursor,", "first=False,", ("rebuild x push",)),
    Mutant("broker/lua/rebuild_chunk.lua", "if current ~= ARGV[1] then", "if false then", ("rebuild x rebuild",)),
    Mutant("broker/lua/begin_rebuild.lua", "if current ~= ARGV[1] then", "if false then", ("rebuild x rebuild",)),
)  # fmt: skip


def survives(mutant: Mutant) -> str:
    """Which of its races stayed green, or that it could not be applied; empty if all turned red."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "sql", Path(folder, "sql"))
        path = Path(folder, "src", "tandemq", mutant.file)
        text = path.read_text(encoding="utf-8")
        if mutant.old not in text:
            return "its text is no longer in the file"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos.races", *(f"={name}" for name in mutant.races)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if " races, " not in done.stdout:
        return f"the races did not run: {done.stderr[-500:]}"
    red = {line.removeprefix("FAIL").split(" - ")[0].strip() for line in done.stdout.splitlines() if line[:4] == "FAIL"}
    return ", ".join(f"{name} stayed green" for name in mutant.races if name not in red)


def main() -> int:
    """One line for each (or those with a race named by a word); 1 if any survives, or a race has no mutant."""
    unproven = set(SPECS) - {name for mutant in MUTANTS for name in mutant.races}
    failed = bool(unproven)
    for name in sorted(unproven):
        print(f"NO MUTANT  {name}")
    for mutant in MUTANTS:
        if sys.argv[1:] and not any(word in " ".join(mutant.races) for word in sys.argv[1:]):
            continue
        verdict = survives(mutant)
        failed |= bool(verdict)
        what = f"{mutant.file}: {mutant.new.strip() or 'nothing'}"
        said = f"SURVIVES  {what}  [{verdict}]" if verdict else f"killed    {what}  [{', '.join(mutant.races)}]"
        print(said, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
