"""``python -m tests.chaos``: the chaos run, the mutants and the directed races; exit code 0 only if all of it is right.

Without flags it is what CI runs, some six minutes. ``--long``: a million tasks and a thousand kills.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

from tests.chaos import mutants
from tests.chaos.run import Options, run
from tests.servers import MissingServer

LONG = {"tasks": 1_000_000, "kills": 1000, "minutes": 24 * 60.0, "long": True}


def options() -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--long", action="store_true", help="1,000,000 tasks, 1,000 kills, longer faults")
    parser.add_argument("--tasks", type=int, help="at least so many (20,000)")
    parser.add_argument("--kills", type=int, help="at least so many processes killed (60)")
    parser.add_argument("--seed", default=str(SystemRandom().randrange(10**6)), help="of all dice; printed")
    parser.add_argument("--minutes", type=float, help="give up and fail if the load has not ended by then (15)")
    parser.add_argument(
        "--mysql", default="", metavar="DIR|URL", help="a folder with another server's programs, or a URL"
    )
    parser.add_argument("--redis-server", default="", metavar="PATH", help="another Redis or Valkey program")
    parser.add_argument("--folder", default="", help="where ledger, logs and report go; default: a new one under /tmp")
    parser.add_argument("--only", choices=["run", "mutants", "races"], help="one of the three parts")
    given = parser.parse_args()
    wanted: dict[str, Any] = LONG if given.long else {}
    wanted |= {name: value for name in ("tasks", "kills", "minutes") if (value := getattr(given, name)) is not None}
    return Options(seed=given.seed, mysql=given.mysql, redis_server=given.redis_server, **wanted), given


def main() -> int:
    chosen, given = options()
    folder = Path(given.folder or tempfile.mkdtemp(prefix="tandemq-chaos-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"run": _run, "mutants": _mutants, "races": _races}
    failed = []
    for name, part in parts.items():
        if given.only in {None, name}:
            began = time.monotonic()
            print(f"== {name}", flush=True)
            if not part(chosen, folder):
                failed.append(name)
            print(f"   {name}: {'FAILED' if name in failed else 'ok'}, {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"FAILED: {', '.join(failed)}; again: python -m tests.chaos --seed {chosen.seed}; all of it in {folder}")
    return len(failed)


def _run(chosen: Options, folder: Path) -> bool:
    outcome = run(chosen, folder)
    print(outcome, flush=True)
    return outcome.ok


def _mutants(_chosen: Options, folder: Path) -> bool:
    tried = mutants.run()
    print("\n".join(map(str, tried)), flush=True)
    (folder / "mutants.json").write_text(json.dumps([{"name": t.name, "ok": t.ok, "found": t.found} for t in tried]))
    return all(one.ok for one in tried)


def _races(_chosen: Options, folder: Path) -> bool:
    if importlib.util.find_spec("tests.chaos.races") is None:
        print("no races here")
        return True
    from tests.chaos import races

    ran = races.run()
    for race in ran:
        print(
            f"{'ok  ' if race.ok else 'FAIL'} {race.name}, {race.order}  {'' if race.ok else race.detail}", flush=True
        )
    return bool(ran) and all(race.ok for race in ran)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MissingServer as lacking:
        sys.exit(f"{lacking}")
