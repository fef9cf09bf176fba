"""``python -m benchmarks.http [--quick]``: ``POST /jobs`` from 32 clients at once, beside a plain handler.

Private servers; the sides alternate, each on a fresh database; medians of the rounds. See ``plain`` for what
is compared with. Then ``POST /jobs/batch``, as tasks a second. Exit code 1 if the target is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import NamedTuple

import psutil

from benchmarks import cpu
from benchmarks.figures import percentile
from benchmarks.registry import ROOT
from benchmarks.servers import Servers
from tests.servers.process import free_port

SIDES = ("plain", "tandemq")
CLIENTS, GENERATORS = 32, 2
WARM_UP = 640
TARGET = 2.0
START_S = 30.0


class Figures(NamedTuple):
    """Of one side in one round. ``cpu_us``: of the server's process, for each request."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float

    def __str__(self) -> str:
        return (
            f"{self.rate:,.0f} requests/s, p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms,"
            f" {self.cpu_us:.0f} us of CPU for each"
        )


def main() -> int:
    args = _arguments()
    servers = Servers()
    rounds: dict[str, list[Figures]] = {side: [] for side in SIDES}
    batches: dict[str, list[float]] = {"NDJSON": [], "array": []}
    try:
        for number in range(args.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                with served(side, servers, args) as (port, process):
                    rounds[side].append(measure(port, process, args.requests))
                    print(f"round {number + 1}, {side}: {rounds[side][-1]}", flush=True)
                    if side == "tandemq" and args.batch:
                        for kind, rates in batches.items():
                            rates.append(batch(port, kind, args.batch))
    finally:
        servers.discard()
    print(f"\n{args.requests} POST /jobs from {CLIENTS} clients, {args.driver}; medians of {args.rounds} rounds:")
    for side in SIDES:
        print(f"{side}: {Figures(*map(statistics.median, zip(*rounds[side], strict=True)))}")
    for kind, rates in batches.items():
        if rates:
            print(f"tandemq, one POST /jobs/batch of {args.batch} as {kind}: {statistics.median(rates):,.0f} tasks/s")
    # Round by round: whatever else the machine did, it did to both.
    ratio = statistics.median(ours.rate / plain.rate for plain, ours in zip(*rounds.values(), strict=True))
    print(f"{ratio:.2f}x the requests of the plain handler (asked: >= {TARGET:g}x)")
    return 0 if ratio >= TARGET else 1


def measure(port: int, process: psutil.Process, requests: int) -> Figures:
    """The load, on a server that is warm."""
    load(port, WARM_UP)
    before = cpu.seconds([process])
    rate, took = load(port, requests)
    spent = cpu.seconds([process]) - before
    return Figures(rate, 1000 * percentile(took, 50), 1000 * percentile(took, 99), 1e6 * spent / requests)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of 3,000 requests")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100_000, help="tasks of each batch request; 0: none")
    parser.add_argument(
        "--autocommit", action="store_true", help="the plain handler's INSERT commits by itself: a round trip less"
    )
    parser.add_argument("--driver", default="pymysql", choices=("pymysql", "mysqldb"), help="of both sides")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.requests, args.batch = 1, 3_000, min(args.batch, 20_000)
    if args.driver == "mysqldb" and importlib.util.find_spec("MySQLdb") is None:
        parser.error("--driver mysqldb: there is no mysqlclient here; pip install 'tandemq[fast]'")
    return args


@contextmanager
def served(side: str, servers: Servers, args: argparse.Namespace) -> Iterator[tuple[int, psutil.Process]]:
    """A server of this side: its port and its process. On a fresh database and an empty Redis."""
    servers.redis.flush()
    database = servers.mysql.create_database()
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "TANDEMQ_DATABASE_URL": servers.mysql.url(database).replace("+pymysql", f"+{args.driver}"),
        "TANDEMQ_REDIS_URL": servers.redis.url(),
        "BENCH_AUTOCOMMIT": "1" if args.autocommit else "0",
    }
    port = free_port()
    command = ["benchmarks.http.plain", str(port)] if side == "plain" else ["tandemq", "api", "--port", str(port)]
    subprocess.run([sys.executable, "-m", "tandemq", "migrate"], env=env, cwd=ROOT, check=True, capture_output=True)
    server = subprocess.Popen([sys.executable, "-m", *command], env=env, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield port, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(30)
        servers.mysql.drop_database(database)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/nothing")
            connection.getresponse().read()
            connection.close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server does not start") from None
            time.sleep(0.05)


def load(port: int, requests: int) -> tuple[float, list[float]]:
    """Requests a second, and how long each took in seconds."""
    share = [CLIENTS // GENERATORS, requests // GENERATORS]
    command = [sys.executable, "-m", "benchmarks.http.load", str(port), *map(str, share)]
    made = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(GENERATORS)
    ]
    try:
        for one in made:
            if one.stdout is None or one.stdout.readline() != "ready\n":
                raise RuntimeError("a load generator does not start")
        for one in made:
            assert one.stdin is not None  # noqa: S101
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [json.loads(one.communicate(timeout=300)[0]) for one in made]
    finally:
        for one in made:
            one.kill()
            one.wait()
    took = [t for answer in answers for t in answer["took"]]
    began, ended = min(a["began"] for a in answers), max(a["ended"] for a in answers)
    return len(took) / (ended - began), took


def batch(port: int, kind: str, tasks: int) -> float:
    """Tasks a second of one request that holds them all."""
    lines = [json.dumps({"type": "bench.noop", "payload": {"user": n, "to": "x@example.com"}}) for n in range(tasks)]
    body = "\n".join(lines) if kind == "NDJSON" else f"[{','.join(lines)}]"
    media_type = "application/x-ndjson" if kind == "NDJSON" else "application/json"
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.monotonic()
    connection.request("POST", "/jobs/batch", body.encode(), {"Content-Type": media_type})
    answer = connection.getresponse()
    text = answer.read()
    took = time.monotonic() - began
    connection.close()
    if answer.status != 200 or text.count(b'"status":201') != tasks:
        raise RuntimeError(f"{answer.status} {text[:500]!r}")
    return tasks / took


if __name__ == "__main__":
    sys.exit(main())
