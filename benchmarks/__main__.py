"""``python -m benchmarks [--quick]``: private servers, every side in turn; a table, targets, a JSON file, a chart."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import figures, peers, targets
from benchmarks.measure import Round
from benchmarks.registry import OURS, ROOT, Side, ceiling, tandemq, versions
from benchmarks.search import best_ceiling
from benchmarks.servers import MARIADB_OPTIONS, POSTGRES_OPTIONS, Servers, postgres_bin
from benchmarks.traffic.checking import check
from tests.servers import find

OUT = Path(__file__).parent / "out"
BULK, QUICK_BULK = 200_000, 50_000


def main() -> int:
    args = _arguments()
    names, left_out = _peers(args)
    peers.install(names)
    about = _about(args, names) | {"left_out": left_out}
    for key, value in about.items():
        print(f"{key}: {value}")
    servers = Servers()
    try:
        print("comparing what tandemq and the ceiling send ...", flush=True)
        different, _ = check(servers, driver=args.driver)
        about["differences"] = different
        print("\n".join(different) or "the same statements and commands per batch", flush=True)
        setting, tried = best_ceiling(servers, tasks=round(30_000 * args.size), driver=args.driver)
        about["ceiling"] = {"batch": setting[0], "processes": setting[1], "tried": tried}
        print(f"ceiling: batch {setting[0]}, {setting[1]} processes, of {tried}", flush=True)
        rounds = _rounds(_sides(args, names, setting), servers, args)
    finally:
        servers.discard()
    about["load_after"] = os.getloadavg()
    results = {name: figures.medians(done) for name, done in rounds.items()}
    _report(results, left_out)
    _write(about, results, rounds, quick=args.quick)
    if different:
        print("\nFAILED: the ceiling does not send what tandemq sends (above): adapt benchmarks/ceiling/hotpath.py")
    return 1 if different else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tandemq and the ceiling only, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 1")
    parser.add_argument(
        "--with", dest="more", default="", metavar="A,B", help=f"further peers: {', '.join(peers.ON_REQUEST)}, or all"
    )
    parser.add_argument("--only", default="", metavar="A,B", help="these sides beside tandemq and no others")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the sides in each round")
    parser.add_argument(
        "--driver", default="pymysql", choices=("pymysql", "mysqldb"), help="of tandemq and the ceiling"
    )
    parser.add_argument("--size", type=float, default=1.0, help="multiplies all numbers of tasks (for development)")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    known = {*peers.ALWAYS, *peers.ON_REQUEST, figures.CEILING, figures.BASE, "all", ""}
    if strange := {*args.more.split(","), *args.only.split(",")} - known:
        parser.error(f"there is no side called {', '.join(sorted(strange))}")
    if args.driver == "mysqldb" and importlib.util.find_spec("MySQLdb") is None:
        parser.error(f"--driver mysqldb: there is no mysqlclient in {OURS.parent}; pip install 'tandemq[fast]'")
    return args


def _peers(args: argparse.Namespace) -> tuple[tuple[str, ...], dict[str, str]]:
    """The peers of this run, and why others that were to be in it are not."""
    asked = peers.ON_REQUEST if args.more == "all" else tuple(filter(None, args.more.split(",")))
    names = tuple(dict.fromkeys((*([] if args.quick else peers.ALWAYS), *asked)))
    if args.only:
        names = tuple(name for name in args.only.split(",") if name in {*peers.ALWAYS, *peers.ON_REQUEST})
    left_out = {name: why for name in names if (why := peers.missing(name))}
    for name, why in left_out.items():
        print(f"\n*** {name} IS NOT MEASURED: {why}\n", flush=True)
    return tuple(name for name in names if name not in left_out), left_out


def _sides(args: argparse.Namespace, names: tuple[str, ...], setting: tuple[int, int]) -> list[Side]:
    bulk = QUICK_BULK if args.quick else BULK
    own = [tandemq(bulk), ceiling(bulk, batch=setting[0], processes=setting[1])]
    if args.only and figures.CEILING not in args.only.split(","):
        own.pop()
    return [*(_scaled(side, args.size) for side in own), *(peers.peer(name, args.size) for name in names)]


def _scaled(side: Side, size: float) -> Side:
    before, cpu = (tuple((phase, max(64, round(n * size))) for phase, n in one) for one in (side.before, side.cpu))
    return replace(side, before=before, cpu=cpu)


def _rounds(chosen: list[Side], servers: Servers, args: argparse.Namespace) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float | None]]] = {side.name: [] for side in chosen}
    order = random.Random(args.seed)
    for number in range(args.rounds):
        for side in order.sample(chosen, len(chosen)):
            start = time.monotonic()
            try:
                with Round(side, servers, samples=100 if args.quick else 120, driver=args.driver) as one:
                    done = one.run()
            except RuntimeError as failed:
                print(f"round {number + 1}, {side.name} FAILED and is left out: {failed}", flush=True)
                continue
            except KeyboardInterrupt:
                print("interrupted: what was measured so far")
                return rounds
            rounds[side.name].append(done)
            shown = ", ".join(f"{name} {figures.short(value)}" for name, value in done.items())
            print(f"round {number + 1}, {side.name} ({time.monotonic() - start:.0f} s): {shown}", flush=True)
    return rounds


def _report(results: figures.Results, left_out: dict[str, str]) -> None:
    print()
    print(figures.table(results))
    for line in figures.losses(results):
        print(f"tandemq is behind in {line}")
    print("\ntargets (docs/benchmarks.md says how each is taken):")
    for verdict in targets.judge(results):
        print(f"  {verdict}")
    for name, why in left_out.items():
        print(f"*** {name} WAS NOT MEASURED: {why}")


def _write(about: dict[str, Any], results: figures.Results, rounds: dict[str, Any], *, quick: bool) -> None:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{about['date'].replace(':', '')}{'-quick' if quick else ''}.json"
    judged = [str(verdict) for verdict in targets.judge(results)]
    run = {"about": about, "medians": results, "targets": judged, "rounds": rounds}
    path.write_text(json.dumps(run, indent=1), encoding="utf-8")
    chart = path.with_suffix(".svg")
    command = [str(peers.BIN / "python"), "-m", "benchmarks.chart", str(path), str(chart)]
    subprocess.run(command, cwd=ROOT, check=True)
    print(f"\nwritten: {path} and {chart.name}")


def _about(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    cpu = next((x.split(":")[1].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")), "?")
    own = versions(OURS / "python", ("tandemq", "PyMySQL", "mysqlclient", "redis", "hiredis", "SQLAlchemy"))
    postgres = {}
    if any("postgres" in peers.SIDES[name].servers for name in names):
        postgres = {"postgres": _output(str(postgres_bin() / "postgres"), "--version")}
        postgres["postgres_settings"] = ", ".join(f"{k}={v}" for k, v in POSTGRES_OPTIONS.items())
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {cpu}, {psutil.virtual_memory().total >> 30} GB, {platform.platform()}",
        "python": platform.python_version(),
        "driver": args.driver,
        "versions": own | (peers.installed(names) if names else {}),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "mariadb": _output(str(find("mariadbd", "mysqld")), "--version"),
        "mariadb_settings": f"innodb_flush_log_at_trx_commit=1, no binlog, {' '.join(MARIADB_OPTIONS)}",
        "redis-server": _output(str(find("redis-server")), "--version"),
        "redis_settings": "no RDB, no AOF",
        **postgres,
        "rounds": args.rounds,
        "size": args.size,
        "seed": args.seed,
        "load_before": os.getloadavg(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
