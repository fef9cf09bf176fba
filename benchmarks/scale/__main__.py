"""``python -m benchmarks.scale``: drain, claims, reconcile and lists at 0, 1M, 5M finished and 1M pending; memory."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import short
from benchmarks.measure import Round
from benchmarks.registry import tandemq
from benchmarks.scale.fill import Filler, check_disk
from benchmarks.scale.memory import memory
from benchmarks.scale.probes import Row, probe
from benchmarks.scale.trend import FLAT_MB, Trend
from benchmarks.servers import Servers
from tandemq import TandemQ
from tests.servers.process import base_folder

OUT = Path(__file__).parents[1] / "out"
#: A round of this benchmark may take long.
PATIENCE_S = 3600.0
#: Share of the drain of an empty table that must be left at the largest number of finished rows.
ASKED = 0.8


def main() -> int:
    args = _arguments()
    check_disk(base_folder(), max([*args.finished, args.pending, args.tasks]))
    options = (f"--innodb-buffer-pool-size={args.buffer_pool}", "--innodb-log-file-size=1G")
    about = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "mariadb_settings": f"innodb_flush_log_at_trx_commit=1, no binlog, {' '.join(options)}",
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "load_before": os.getloadavg(),
    }
    servers = Servers(options)
    rows: dict[str, Row] = {}
    trends: list[Trend] = []
    try:
        _finished(servers, args, rows)
        _pending(servers, args, rows)
        if args.tasks:
            print(f"memory over {args.tasks:,} tasks ...", flush=True)
            with _round(servers, args) as one:
                trends = memory(one, args.tasks)
    finally:
        servers.discard()
    about["load_after"] = os.getloadavg()
    _report(rows, trends, args)
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{str(about['date']).replace(':', '')}-scale.json"
    run: dict[str, Any] = {"about": about, "rows": rows, "memory": [asdict(one) for one in trends]}
    path.write_text(json.dumps(run, indent=1), encoding="utf-8")
    print(f"\nwritten: {path}")
    return 0


def _arguments() -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        return sorted(int(part) for part in text.split(",") if part)

    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--finished", type=sizes, default=[0, 1_000_000, 5_000_000], metavar="N,N", help="sizes")
    parser.add_argument("--pending", type=int, default=1_000_000, help="rows that wait; 0: not measured")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="of the memory run; 0: not measured")
    parser.add_argument("--drain", type=int, default=50_000, help="tasks of each drain")
    parser.add_argument("--buffer-pool", default="2G", help="of the private MariaDB")
    parser.add_argument("--driver", default="pymysql", choices=("pymysql", "mysqldb"))
    return parser.parse_args()


def _round(servers: Servers, args: argparse.Namespace) -> Round:
    return Round(tandemq(args.drain), servers, driver=args.driver, patience_s=PATIENCE_S)


def _app(one: Round) -> TandemQ:
    return TandemQ(one.env["TANDEMQ_DATABASE_URL"], one.env["TANDEMQ_REDIS_URL"])


def _finished(servers: Servers, args: argparse.Namespace, rows: dict[str, Row]) -> None:
    """One database that grows; what the probes themselves finish comes on top, and is little beside it."""
    with _round(servers, args) as one, _app(one) as app:
        filler = Filler(servers.mysql, one.database)
        there = 0
        for size in args.finished:
            start = time.monotonic()
            filler.finished(there, size, total=max(args.finished))
            filler.analyze()
            there = max(there, size)
            print(f"{size:,} finished rows, filled in {time.monotonic() - start:.0f} s ...", flush=True)
            rows[f"{size:,} finished"] = probe(one, app, filler, drain=args.drain)


def _pending(servers: Servers, args: argparse.Namespace, rows: dict[str, Row]) -> None:
    if not args.pending:
        return
    with _round(servers, args) as one, _app(one) as app:
        filler = Filler(servers.mysql, one.database)
        start = time.monotonic()
        filler.pending(args.pending)
        filler.analyze()
        filler.push(app)
        print(f"{args.pending:,} pending rows, filled in {time.monotonic() - start:.0f} s ...", flush=True)
        drain = min(args.drain, args.pending // 2)
        rows[f"{args.pending:,} pending"] = probe(one, app, filler, drain=drain, pending=True)


def _report(rows: dict[str, Row], trends: list[Trend], args: argparse.Namespace) -> None:
    print()
    print(f"| figure | {' | '.join(rows)} |")
    print(f"| --- | {' | '.join('---' for _ in rows)} |")
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        print(f"| {name} | {' | '.join(short(row.get(name)) for row in rows.values())} |")
    smallest, largest = (f"{size:,} finished" for size in (args.finished[0], args.finished[-1]))
    left = rows[largest]["drain"] / rows[smallest]["drain"]
    word = "met" if left >= ASKED else "MISSED"
    print(f"\n{word}  drain with {largest} rows against {smallest}: {left:.0%} (asked: >= {ASKED:.0%})")
    if trends:
        print(f"\nmemory over {args.tasks:,} tasks (flat: less than {FLAT_MB:g} MB per 100,000 tasks)")
    for one in trends:
        judged = "" if one.process in {"mariadbd", "redis-server"} else "flat" if one.is_flat else "GROWS"
        line = f"{one.first_mb:.1f} MB to {one.last_mb:.1f} MB, {one.mb_per_100k:+.2f} MB per 100,000 tasks"
        print(f"  {one.process}: {line} ({one.samples} samples) {judged}")


if __name__ == "__main__":
    sys.exit(main())
