"""One chaos run: load and faults side by side, then peace, a deadline, and the verdict."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.ledger import read
from tests.chaos.nemesis import Nemesis
from tests.chaos.report import Outcome, Work, recovery
from tests.chaos.site import Site, wait
from tests.servers import ExternalMySQL, MySQLServer, RedisServer
from tests.workers import ROOT

#: How long the load takes at least, so that faults and tasks meet; and its least pace, until the nemesis is done.
LOAD_S, LEAST_PACE = 120.0, 100.0
#: Beyond so many open tasks producers wait: faults, not a slow machine, shall make the backlog.
MOST_OPEN = 3000
PRODUCERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much, with which dice, on which servers."""

    tasks: int = 20_000
    kills: int = 60
    seed: str = "1"
    minutes: float = 15.0
    long: bool = False
    mysql: str = ""
    redis_server: str = ""
    folder: str = ""


@contextmanager
def servers(options: Options) -> Iterator[tuple[MySQLServer, RedisServer]]:
    """Private ones, or the MySQL of a URL; ``mysql`` may also name a folder that holds another server's programs."""
    if "://" in options.mysql:
        mysql: MySQLServer = ExternalMySQL(options.mysql)
    else:
        if options.mysql:
            os.environ["PATH"] = os.pathsep.join([options.mysql, f"{options.mysql}/bin", os.environ.get("PATH", "")])
        mysql = MySQLServer("--max-connections=400")
        mysql.start()
    redis = RedisServer()
    if options.redis_server:
        redis.program = Path(options.redis_server).absolute()
    redis.start()
    running = [redis]
    try:
        yield mysql, redis
    finally:
        for server in running:
            server.discard()
        if not isinstance(mysql, ExternalMySQL):
            mysql.discard()


def run(options: Options, folder: Path) -> Outcome:
    """The whole of it; prints how it goes."""
    began = time.monotonic()
    about = asdict(options) | {"commit": commit()}
    print(f"chaos: seed {options.seed}, commit {about['commit']}, ledger in {folder}", flush=True)
    with servers(options) as (mysql, redis), Site(mysql, redis, folder) as site:
        about |= {"mysql": mysql.sql("SELECT VERSION()")[0][0], "redis": redis.client().info("server")["redis_version"]}
        # Some five lanes kill, most of them more than one process a turn.
        spell = 5 * options.tasks // options.kills
        nemesis = Nemesis(site, options.seed, spell=spell, long=options.long)
        nemesis.start()
        problems = _load(site, nemesis, options)
        _drain(site, nemesis, problems)
        nemesis.save(folder / "faults.jsonl")
        site.note_finals()
        site.redis.discard()
    about["seconds"] = round(time.monotonic() - began)
    verdict = check(read(site.ledger_folder))
    problems += [f"a lane of the nemesis broke: {broken}" for broken in nemesis.broken]
    problems += [f"never came about: {name}" for name in nemesis.idle()]
    problems += [
        f"{name} = 0: the run proved nothing" for name in ("reexecuted", "refused") if not verdict.counts[name]
    ]
    if verdict.counts["attempted"] < options.tasks:
        problems.append(f"only {verdict.counts['attempted']} tasks")
    problems += tracebacks(site.logs)
    outcome = Outcome(
        about, verdict, nemesis.fired, recovery(nemesis.fired, Work.of(read(site.ledger_folder))), problems
    )
    outcome.save(folder / "report.json")
    return outcome


def _load(site: Site, nemesis: Nemesis, options: Options) -> list[str]:
    """Until there were enough tasks and kills and every lane has done its part."""
    deadline = time.monotonic() + 60 * options.minutes
    full = max(options.tasks / LOAD_S, LEAST_PACE)
    counter, said_at = _Counter(site.ledger_folder), 0.0
    while True:
        time.sleep(0.5)
        made = counter.turn()
        enough = made >= 1.03 * options.tasks  # keyed ones are asked for twice
        is_full = (site.open_rows() or 0) > MOST_OPEN
        site.pace((1.0 if is_full else full) / PRODUCERS)
        if enough and nemesis.kills >= options.kills and not nemesis.busy:
            return []
        if time.monotonic() > said_at + 20:
            said_at = time.monotonic()
            print(
                f"  {made} tasks, {nemesis.kills} kills, {len(nemesis.fired)} faults, busy: {nemesis.busy}", flush=True
            )
        if time.monotonic() > deadline:
            return [f"after {options.minutes:g} minutes: {made} tasks, {nemesis.kills} kills, busy: {nemesis.busy}"]


def _drain(site: Site, nemesis: Nemesis, problems: list[str]) -> None:
    """Faults stop; then everything must be final by a deadline."""
    site.pace("stop")
    nemesis.stop()
    for process in site.running():
        process.signal(signal.SIGCONT)
        if "producer" not in process.name:
            process.kill()
        elif not wait(lambda process=process: not process.alive, 40):
            problems.append(f"{process.name} does not end")
            process.kill()
    workers = [site.worker(f"last{i}") for i in range(2)]
    wait(lambda: all(worker.ready() for worker in workers), 60)
    left = site.open_rows() or 0
    lease_s, pass_s = site.settings.lease_s, site.settings.reconcile_s
    deadline_s = 3 * lease_s + 3 * pass_s + 20.0 + left / 50
    began = time.monotonic()
    is_drained = wait(lambda: site.open_rows() == 0, deadline_s, every_s=0.1)
    print(f"  drain: {left} open tasks, {time.monotonic() - began:.1f} of {deadline_s:.0f} s", flush=True)
    if not is_drained:
        problems.append(f"{site.open_rows()} tasks had not ended {deadline_s:.0f} s after the last fault")
    # A claims row without ids only keeps a late claim out; any other must have gone with its last task.
    own = "SELECT COUNT(*) FROM {t}claims WHERE ids <> ''"
    if not wait(lambda: site.sql(own)[0][0] == 0, 3 * lease_s + 10, every_s=0.1):
        problems.append(f"{site.sql(own)[0][0]} leases of ended tasks are left")
    for worker in workers:
        worker.signal(signal.SIGTERM, group=False)
    for worker in workers:
        if not wait(lambda worker=worker: not worker.alive, 60) or worker.popen.returncode:
            problems.append(f"{worker.name} ends with {worker.popen.poll()}")


class _Counter:
    """How many tasks were asked for, by what was added to the producers' files since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._n = 0

    def turn(self) -> int:
        for path in self._folder.glob("producer-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                added = file.read()
            self._read[path] += len(added)
            self._n += added.count(b'"r":"invoke"')
        return self._n


def tracebacks(logs: Path) -> list[str]:
    """Tracebacks of the product's own, by their last lines: a handled fault needs none."""
    found: Counter[str] = Counter()
    for log in [path for path in logs.glob("*.log") if path.name.startswith(("worker", "last", "mover", "reconcile"))]:
        for trace in re.findall(
            r"Traceback \(most recent call last\):\n(?:[ |].*\n|\n)*(\S.*)", log.read_text(errors="replace")
        ):
            found[f"{log.name.split('.')[0]}: {trace[:200]}"] += 1
    return [f"{n} x traceback in {what}" for what, n in found.most_common(10)]


def commit() -> str:
    """What was tested."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
