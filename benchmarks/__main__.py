"""``python -m benchmarks [--quick]``: private servers, every side in turn, a table, a JSON file."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import figures
from benchmarks.measure import Round
from benchmarks.registry import OURS, PEERS, Side, install_peers, sides, versions
from tests.servers import MySQLServer, RedisServer, find

OUT = Path(__file__).parent / "out"


def main() -> None:
    args = _arguments()
    chosen = sides(quick=args.quick)
    if args.only:
        chosen = [side for side in chosen if side.name in {"tandemq", *args.only.split(",")}]
    if any(side.bin == PEERS for side in chosen):
        install_peers()
    about = _about(chosen, args)
    for key, value in about.items():
        print(f"{key}: {value}")
    mysql, redis = MySQLServer(), RedisServer()
    try:
        mysql.start()
        redis.start()
        rounds = _rounds(chosen, mysql, redis, args)
    finally:
        mysql.discard()
        redis.discard()
    about["load_after"] = os.getloadavg()
    results = {name: figures.medians(done) for name, done in rounds.items()}
    print()
    print(figures.table(results))
    for line in figures.losses(results):
        print(f"tandemq is behind in {line}")
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{about['date'].replace(':', '')}{'-quick' if args.quick else ''}.json"
    path.write_text(json.dumps({"about": about, "medians": results, "rounds": rounds}, indent=1), encoding="utf-8")
    print(f"\nwritten: {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tandemq and the ceiling only, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 1")
    parser.add_argument("--only", default="", help="names of sides beside tandemq, by commas")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the sides in each round")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    return args


def _rounds(chosen: list[Side], mysql: MySQLServer, redis: RedisServer, args: argparse.Namespace) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float | None]]] = {side.name: [] for side in chosen}
    order = random.Random(args.seed)
    for number in range(args.rounds):
        for side in order.sample(chosen, len(chosen)):
            start = time.monotonic()
            try:
                done = Round(side, mysql, redis, samples=100 if args.quick else 120).run()
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


def _about(chosen: list[Side], args: argparse.Namespace) -> dict[str, Any]:
    peers = tuple(side.name for side in chosen if side.bin == PEERS)
    cpu = next((x.split(":")[1].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")), "?")
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {cpu}, {psutil.virtual_memory().total >> 30} GB, {platform.platform()}",
        "python": platform.python_version(),
        "versions": versions(OURS / "python", ("tandemq", "PyMySQL", "redis", "SQLAlchemy"))
        | (versions(PEERS / "python", (*peers, "redis")) if peers else {}),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "mariadb": _output(str(find("mariadbd", "mysqld")), "--version"),
        "redis-server": _output(str(find("redis-server")), "--version"),
        "mariadb_settings": "innodb_flush_log_at_trx_commit=1, no binlog, buffer pool 128 MB",
        "redis_settings": "no RDB, no AOF",
        "rounds": args.rounds,
        "seed": args.seed,
        "load_before": os.getloadavg(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
