"""One queue under one fault: its own Redis, its own workers, its own ledger, and what the checker makes of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.checker import check
from tests.chaos.ledger import Ledger, read
from tests.chaos.peers.systems import LEASE_S, ROOT, System
from tests.servers import RedisServer
from tests.servers.process import base_folder

KILLS, REDIS_KILLS = 6, 3
#: A worker that is up and does not block in Redis by now polls it.
POLLS_AFTER_S = 8.0
#: What says that work goes on, in this many seconds.
LOOK_S = 0.5
#: Nothing has ended for this long and nothing is left to do: whatever is missing is lost.
QUIET_S = 3 * LEASE_S


class Cell:
    """``load`` puts tasks in while the fault happens; ``drain`` waits and judges, and may run beside other cells."""

    def __init__(self, system: System, fault: str, tasks: int, seed: int, database_url: str) -> None:
        self.system, self.fault, self._tasks = system, fault, tasks
        self._rng = Random(f"{seed}/{system.name}/{fault}")
        self._folder = Path(tempfile.mkdtemp(prefix=f"{system.name}-", dir=base_folder()))
        self._redis = RedisServer("--appendonly", "yes", "--appendfsync", "everysec")
        self._redis.start()
        self._env = system.environment(self._redis.url(), self._folder, database_url)
        self._groups: dict[int, subprocess.Popen[bytes]] = {}
        self._fired = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._respawn, daemon=True)

    # processes

    def _start(self, n: int) -> None:
        with (self._folder / f"worker-{n}.log").open("ab") as log:
            self._groups[n] = subprocess.Popen(
                self.system.command(n, self._redis.url()), cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _respawn(self) -> None:
        """As systemd would: a worker that has ended is started again after a moment."""
        while not self._over.wait(0.3):
            for n, process in list(self._groups.items()):
                if process.poll() is not None and not self._over.is_set():
                    _kill_group(process)
                    self._start(n)

    def _members(self, n: int) -> list[int]:
        """The processes of a group, the first one first."""
        group = self._groups[n].pid
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal() and _group_of(int(p.name)) == group]
        return sorted(found, key=lambda pid: (pid != group, pid))

    def _side(self, *args: str) -> subprocess.Popen[bytes]:
        command = [str(self.system.bin / "python"), "-m", "tests.chaos.peers.produce", self.system.module, *args]
        with (self._folder / "producer.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=subprocess.PIPE, stderr=log)

    # the load and its fault

    def load(self) -> None:
        """Start workers and producer, and let the fault happen; returns when all was asked for and all faults fired."""
        for n in range(self.system.groups):
            self._start(n)
        self._watch.start()
        act: Callable[[], None] = getattr(self, "_" + self.fault)
        if self.fault == "redis_restart_idle":
            self._wait_for_workers()
            act()
            self._produce().wait()
            return
        producer = self._produce()
        self._wait_for_begun()
        act()
        producer.wait()

    def _produce(self) -> subprocess.Popen[bytes]:
        return self._side("enqueue", str(self._tasks))

    def _wait_for_workers(self) -> None:
        """Idle in their pop, as Redis says; some poll instead, and are given time enough to have begun."""
        began = time.monotonic()
        _until(lambda: self._blocked() >= 1 or time.monotonic() - began > POLLS_AFTER_S, 30)
        time.sleep(3.0)

    def _blocked(self) -> int:
        with self._redis.client() as client:
            return sum("b" in c["flags"] or c["cmd"].startswith(("brpop", "blmove")) for c in client.client_list())

    def _wait_for_begun(self) -> None:
        _until(lambda: self._progress()[0] >= 20, 30)

    def _note(self) -> None:
        """A fault has happened; it counts if there was work for it to hurt."""
        _, ended = self._progress()
        self._fired += ended < self._tasks

    def _kill_workers(self) -> None:
        for _ in range(KILLS):
            n = self._rng.randrange(self.system.groups)
            members = self._members(n)
            if self._rng.random() < 0.5:
                _kill_group(self._groups[n])
            elif members:
                _kill(self._rng.choice(members))
            self._note()
            time.sleep(self._rng.uniform(0.8, 1.6))

    def _kill_redis(self) -> None:
        for _ in range(REDIS_KILLS):
            time.sleep(self._rng.uniform(0.5, 1.5))
            self._redis.kill9()
            self._note()
            time.sleep(0.5)
            self._redis.start()

    def _redis_restart_idle(self) -> None:
        self._redis.stop()
        time.sleep(1.0)
        self._redis.start()
        self._fired += 1  # idle on purpose
        time.sleep(1.0)

    def _freeze_worker(self) -> None:
        self._note()
        frozen = self._members(self._rng.randrange(self.system.groups))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_S + 3.0)
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)

    def _old_snapshot(self) -> None:
        data, saved = self._redis.folder / "appendonlydir", self._folder / "snapshot"
        self._redis.sigstop()
        shutil.copytree(data, saved)
        self._redis.sigcont()
        time.sleep(3.0)
        self._redis.kill9()
        self._note()
        shutil.rmtree(data)
        shutil.copytree(saved, data)
        self._redis.start()

    # afterwards

    def drain(self) -> dict[str, Any]:
        """Wait until all is done, or nothing moves any more, or its time is over; stop everything; the verdict."""
        began = last = time.monotonic()
        seen = 0
        while time.monotonic() - began < self.system.drain_s:
            _, ended = self._progress()
            if ended >= len(self._accepted()):
                break
            if ended > seen:
                seen, last = ended, time.monotonic()
            if time.monotonic() - last > QUIET_S and not self._left():
                break
            time.sleep(LOOK_S)
        recovery_s = max((e["t"] for e in read(self._folder) if e["e"] == "end"), default=began) - began
        left = self._left()
        self.close()
        return self._judge(left, recovery_s)

    def _judge(self, left: dict[str, str], recovery_s: float) -> dict[str, Any]:
        runs: dict[str, int] = {}
        for event in read(self._folder):
            if event["e"] == "end":
                runs[event["ref"]] = runs.get(event["ref"], 0) + 1
        ledger = Ledger(self._folder, "final")
        ledger.write({"e": "final", "ref": ref, "state": "done"} for ref in runs)
        dead = [ref for ref, where in left.items() if where == "dead" and ref not in runs]
        ledger.write({"e": "final", "ref": ref, "state": "dead"} for ref in dead)
        ledger.write(
            {"e": "left", "ref": ref, "where": w} for ref, w in left.items() if w != "dead" and ref not in runs
        )
        verdict = check(read(self._folder))
        wrong = {rule: len(texts) for rule, texts in verdict.faults.items()}
        # Begun once, never ended, and named nowhere any more: as lost as what never began.
        lost = wrong["lost"] + wrong["unfinished"]
        return {
            "system": self.system.name, "fault": self.fault, "fired": self._fired,
            **{name: verdict.counts[name] for name in ("attempted", "accepted", "unknown", "reexecuted")},
            "lost": lost, "duplicated": sum(n - 1 for n in runs.values()), "stuck": wrong["stuck"], "dead": len(dead),
            "phantom": wrong["phantom"] + wrong["unexpected"], "recovery_s": round(max(0.0, recovery_s), 1),
            "examples": {rule: texts[:3] for rule, texts in verdict.faults.items() if texts},
        }  # fmt: skip

    def _accepted(self) -> set[str]:
        return {e["ref"] for e in read(self._folder) if e["e"] == "enq" and e["r"] == "ok"}

    def _progress(self) -> tuple[int, int]:
        """How many have begun, and how many of the accepted ones have ended."""
        begun, ended = set(), set()
        for event in read(self._folder):
            if event["e"] == "exec":
                begun.add(event["ref"])
            elif event["e"] == "end":
                ended.add(event["ref"])
        return len(begun), len(ended & self._accepted())

    def _left(self) -> dict[str, str]:
        """Where the queue still names a task; what has ended is not of interest."""
        out, _ = self._side("left").communicate()
        return dict(json.loads(out)) if out else {"unknown": "its store does not answer"}

    def close(self) -> None:
        """Kill everything; the ledger stays."""
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()
        for process in self._groups.values():
            _kill_group(process)
        self._redis.discard()


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to all of them, and reap the first."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _until(predicate: Callable[[], bool], timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > give_up_at:
            raise RuntimeError("the workers do not come up")
        time.sleep(0.1)
