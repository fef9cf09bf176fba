"""``python -m tests.chaos.peers --tasks 2000 --seed 1``: the same faults for several queues, as Markdown and JSON.

The loads run one after the other, so that none has to share the machine; while the next one runs, the queue before it
drains. A fault counts only if tasks were open when it happened. tandemq's own faults (MySQL, lost answers, crash
points) are in ``python -m tests.chaos``: here is only what queues on Redis can be asked for as well. "FLUSHALL" is not:
a queue that lives in Redis alone has nothing left then.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import install, installed
from tests.chaos.peers.cell import Cell
from tests.chaos.peers.systems import SYSTEMS, Databases

FAULTS = {
    "kill_workers": "kill -9 of workers at random (6)",
    "freeze_worker": "a worker stopped for longer than its lease",
    "kill_redis": "kill -9 of Redis, AOF everysec (3)",
    "redis_restart_idle": "Redis restarted while workers wait for work",
    "old_snapshot": "Redis set back by 3 s (only what is kept elsewhere can come back)",
}
COLUMNS = ("accepted", "lost", "duplicated", "stuck", "dead", "phantom", "reexecuted", "recovery_s")


def run(systems: list[str], faults: list[str], tasks: int, seed: int) -> list[dict[str, Any]]:
    """Every system under every fault; a row each."""
    databases, rows, drains = Databases(), list[dict[str, Any]](), list[threading.Thread]()

    def drain(cell: Cell) -> None:
        row = cell.drain()
        rows.append(row)
        print(row["system"], row["fault"], {name: row[name] for name in COLUMNS}, row["examples"], flush=True)

    try:
        for name in systems:
            for fault in faults:
                cell = Cell(SYSTEMS[name], fault, tasks, seed, databases.create() if name == "tandemq" else "")
                try:
                    cell.load()
                except BaseException:
                    cell.close()
                    raise
                drains.append(threading.Thread(target=drain, args=(cell,)))
                drains[-1].start()
    finally:
        for thread in drains:
            thread.join()
        databases.discard()
    return sorted(rows, key=lambda row: (faults.index(row["fault"]), systems.index(row["system"])))


def markdown(rows: list[dict[str, Any]], versions: dict[str, str]) -> str:
    """The table for docs/reliability.md."""
    head = ["fault", "queue", "accepted", "lost", "completed twice", "stuck", "given up", "phantom", "begun again", "s"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 2 + " ---: |" * 8]
    for row in rows:
        cells = [FAULTS[row["fault"]], row["system"], *(str(row[name]) for name in COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "s: from the end of the fault and the load to the last task done.", ""]
    used = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    lines += [f"- {name} {versions.get(f'peer {name}', '')}: {SYSTEMS[name].settings}" for name in used]
    return "\n".join(lines)


def main() -> int:
    """0 if tandemq lost, doubled for good, or left nothing behind; what the others did is only told."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.peers", description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000, help="per queue and fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--systems", default="celery,dramatiq,tandemq", help="also rq, which needs minutes more")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--out", type=Path, help="folder for peers.json and peers.md")
    chosen = parser.parse_args()
    systems, faults = chosen.systems.split(","), chosen.faults.split(",")
    others = tuple(name for name in systems if name != "tandemq")
    install(others)
    print("seed", chosen.seed, "tasks", chosen.tasks, flush=True)
    began = time.monotonic()
    rows = run(systems, faults, chosen.tasks, chosen.seed)
    table = markdown(rows, installed(others))
    print(f"{table}\n\n{time.monotonic() - began:.0f} s")
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "peers.json").write_text(json.dumps({"seed": chosen.seed, "rows": rows}, indent=1))
        (chosen.out / "peers.md").write_text(table + "\n")
    own = [row for row in rows if row["system"] == "tandemq"]
    bad = [row for row in own if row["lost"] or row["stuck"] or row["phantom"] or row["dead"] or not row["fired"]]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
