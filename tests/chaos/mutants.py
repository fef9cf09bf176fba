"""One-line breakages of the product: each must turn a directed run red, and the product itself must leave it green.

A mutant is a copy of ``src`` with a few words changed, tried by a process of its own with PYTHONPATH.
``python -m tests.chaos.mutants [NAME]`` runs them alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.directed import SCENARIOS
from tests.servers import MySQLServer
from tests.workers import ROOT

AT_ONCE, PATIENCE_S = 4, 180.0
#: What is not done by then is stuck; the unchanged product gets more time, and ends as soon as it is done.
RED_DRAIN_S = 8.0
Change = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``changes`` of text (file below src/tandemq, old, new), the run they are tried in, the rule that must find them.

    ``rule`` "": it must stay green.
    """

    name: str
    scenario: str
    rule: str = ""
    changes: tuple[Change, ...] = ()


_NO_REPUSH = ("reconciler/window.py", "self._broker.push_next(level, lost)", "pass")
MUTANTS = [
    Mutant("no fence in the finish", "zombie_finishes", "wrong_winner", ((
        "store/statements.py", 'return f"{where} AND lease_token = {int(tokens.pop())}"', "return where"),)),
    Mutant("a handler's own transaction is committed although the lease is lost", "zombie_commits", "links", ((
        "store/handling.py", "if self._finish(lease, result, note) != 1:",
        "if self._finish(lease, result, note) > 1:"),)),
    Mutant("claim without the status guard", "copies", "over_most", ((
        "store/statements.py", 'f" AND {sources(Event.CLAIM)} AND run_at <= {self.d.now} ORDER BY id',
        'f" AND run_at <= {self.d.now} ORDER BY id'),)),
    Mutant("finish before the effect", "killed_inside", "done_without_effect", ((
        "worker/child.py", "        outcome = self.executor.run(lease, is_cancelled, limit_s",
        '        self.acker.add(held, __import__("tandemq.core.lifecycle").core.lifecycle.Succeed(None));'
        " outcome = self.executor.run(lease, is_cancelled, limit_s"),)),
    Mutant("no re-push", "lost_pop", "stuck", (_NO_REPUSH,)),
    Mutant("no re-push after a flush, which the generation heals alone", "flushed", "", (_NO_REPUSH,)),
    Mutant("generation ignored, and no re-push", "flushed", "stuck", (_NO_REPUSH, (
        "reconciler/generation.py", "held, [q for q in held if q not in healthy], tally)", "held, [], tally)"))),
    Mutant("library retries of the Redis client back on", "black_hole", "hung", ((
        "broker/client.py", '"retry": Retry(NoBackoff(), 0)', '"retry": Retry(NoBackoff(), 10)'),)),
    Mutant("REPEATABLE READ", "stopped_claim", "hung", ((
        "store/engines.py", '"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"',
        '"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"'),)),
    Mutant("expire without decide", "lost_worker", "over_most", ((
        "redeliver.py", "return decide(attempt, Lost(failure(error_type, message)), policy_of(lease.options), rng)",
        'return __import__("tandemq.core.lifecycle").core.lifecycle.Release(None)'),)),
    Mutant("push before commit", "calm", "stuck", ((
        "producer.py", "self._links.store.after_commit(connection, committed)", "self.pusher.push(entries)"),)),
    Mutant("changed rows taken for matched rows", "rows_locked", "surprises", ((
        "store/engines.py", "_FOUND_ROWS, _MULTI_STATEMENTS = 1 << 1,", "_FOUND_ROWS, _MULTI_STATEMENTS = 0,"),)),
]  # fmt: skip
#: The product as it is, in each of the runs: what makes the red ones mean something.
CONTROLS = [Mutant(f"unchanged, {name}", name) for name in SCENARIOS]


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one; ``found``: the rules that it broke."""

    name: str
    ok: bool
    found: list[str]
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        said = ", ".join(self.found) or self.detail or "green"
        return f"{'ok  ' if self.ok else 'FAIL'} {self.name:78} {self.seconds:5.1f} s  {said}"


def run(wanted: Iterable[Mutant] = (*MUTANTS, *CONTROLS)) -> list[Tried]:
    """Try them, some at once, on one MySQL."""
    mysql = MySQLServer()
    mysql.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda mutant: attempt(mutant, mysql.url()), wanted))
    finally:
        mysql.discard()


def attempt(mutant: Mutant, url: str) -> Tried:
    """Make the copy, run, compare."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as made:
        folder = Path(made)
        if missing := change(mutant, folder):
            return Tried(mutant.name, False, [], 0.0, f"its text no longer applies: {missing}")
        base = folder if mutant.changes else ROOT
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(base / "src"), str(ROOT)])}
        if mutant.rule:
            env["CHAOS_DRAIN_S"] = str(RED_DRAIN_S)
        command = [sys.executable, "-m", "tests.chaos.directed", mutant.scenario, url, str(folder / "run")]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            verdict = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as broken:
            text = getattr(broken, "stderr", "") or (done.stderr[-500:] if "done" in locals() else "")
            return Tried(mutant.name, False, [], time.monotonic() - began, f"{type(broken).__name__}: {text!r}")
    ok = mutant.rule in verdict["faults"] if mutant.rule else verdict["valid"]
    return Tried(
        mutant.name, ok, sorted(verdict["faults"]), time.monotonic() - began, "" if ok else json.dumps(verdict)
    )


def change(mutant: Mutant, folder: Path) -> str:
    """Copy the product and change it; the first text that is not there exactly once, or ""."""
    for name in ("src", "sql") if mutant.changes else ():
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in mutant.changes:
        path = folder / "src" / "tandemq" / file
        text = path.read_text() if path.exists() else ""
        if text.count(old) != 1:
            return f"{file}: {old!r} is there {text.count(old)} times"
        path.write_text(text.replace(old, new))
    return ""


if __name__ == "__main__":
    every = [*MUTANTS, *CONTROLS]
    tried = run([one for one in every if any(word in one.name for word in sys.argv[1:])] if sys.argv[1:] else every)
    print("\n".join(map(str, tried)))
    sys.exit(not all(one.ok for one in tried))
