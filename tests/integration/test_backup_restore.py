"""A backup of MySQL alone, taken in full swing, restored into a new server beside an empty Redis: nothing is lost."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tandemq.core.settings import Settings
from tests import recipes
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import ROOT, MySQLServer, RedisServer
from tests.servers.programs import environment, need
from tests.waiting import eventually
from tests.workers import Bench, bench

#: Without the first the dump holds a finished task and the claim of it, or neither.
CONSISTENT = {"--single-transaction", "--quick", "--skip-lock-tables"}
RUNBOOK = ROOT / "deploy" / "runbook.md"
PACE = {"lease_s": 3.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "mover_s": 0.1}


def documented(program: str) -> list[str]:
    """The options that the runbook gives the program."""
    found = re.search(rf"^\$? ?{program} (.+?) tandemq [<>]", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert found, f"the runbook does not say how to use {program}"
    return [word for word in shlex.split(found[1]) if word.startswith("--")]


def run(
    server: MySQLServer, user: str, password: str, program: tuple[str, ...], *arguments: str, **files: Path
) -> None:
    """A client program on this server, reading ``source`` and writing ``target``."""
    path = need(*program)
    command = [path, "--no-defaults", "-h127.0.0.1", f"-P{server.port}", f"-u{user}", *arguments]
    nothing = Path(os.devnull)
    with files.get("source", nothing).open("rb") as source, files.get("target", nothing).open("wb") as out:
        env = environment(path) | {"MYSQL_PWD": password}
        done = subprocess.run(command, stdin=source, stdout=out, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()


class Producing:
    """Enqueues without pause until told to end; ``accepted`` are ids whose enqueue has returned."""

    def __init__(self, work: Bench) -> None:
        self._work, self._over = work, threading.Event()
        self.accepted: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self.accepted += self._work.ids("noop", 20)
            self.accepted += self._work.ids("noop", 2, delay=2)
            self._over.wait(0.02)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_nothing_that_was_accepted_before_the_backup_is_lost(
    own_mysql: Callable[..., MySQLServer],
    own_redis: Callable[..., RedisServer],
    settings_for: Callable[..., Settings],
    tmp_path: Path,
    probe: Probe,
) -> None:
    assert set(documented("mysqldump")) >= CONSISTENT
    server, gate, dump = own_mysql(), tmp_path / "gate", tmp_path / "tandemq.sql"
    database = server.create_database()
    recipes.run_sql(server.url(database), recipes.USERS_SQL)
    settings = settings_for(server.url(database), own_redis().url(), **PACE)

    with bench(settings, tmp_path, probe.environ) as work:
        worker = work.worker("-c", "6").ready()
        held = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(3)]
        dead = [work.app.enqueue("final", {}).id for _ in range(3)]
        retried = [work.app.enqueue("flaky", {"fails": 1}).id for _ in range(10)]
        later = work.ids("noop", 5, delay=6)
        eventually(lambda: work.statuses(held) == {"running": 3}, 60, worker.text)
        assert work.ended(dead) == {"dead": 3}
        tandemq(settings, "token", "create", "mailer", "--role", "work")
        producing = Producing(work)
        eventually(lambda: len(producing.accepted) > 100, 60)
        before = list(producing.accepted)
        run(
            server, "tandemq_backup", recipes.password("backup"), ("mariadb-dump", "mysqldump"),
            *documented("mysqldump"), database, target=dump,
        )  # fmt: skip
        tandemq(settings, "token", "revoke", "mailer")
        eventually(lambda: len(producing.accepted) > len(before) + 100, 60)
        producing.end()
        after = producing.accepted[len(before) :]
        worker.kill_group()
    seen = dict(server.sql("SELECT id, fence FROM tandemq_tasks", database=database))
    server.kill9()

    # Another machine: what the dump holds, and a Redis that has never seen anything.
    new = own_mysql()
    database = new.create_database()
    run(new, "root", "", ("mariadb", "mysql"), database, source=dump)
    finished = {row[0] for row in new.sql("SELECT id FROM tandemq_tasks WHERE status = 'succeeded'", database=database)}
    ran = probe.starts()
    # Ids that were given out after the backup are not given to other tasks, if the runbook is followed.
    (raise_ids,) = re.findall(r"ALTER TABLE tandemq_tasks AUTO_INCREMENT = \d+", RUNBOOK.read_text())
    new.sql(re.sub(r"\d+$", str(max(after) + 1000), raise_ids), database=database)
    # Nor is a fence that a system elsewhere may have seen.
    (raise_fences,) = re.findall(r"UPDATE tandemq_tasks SET fence = .+(?=;)", RUNBOOK.read_text())
    new.sql(raise_fences, database=database)
    closed = "status IN ('succeeded', 'cancelled')"
    now = dict(new.sql(f"SELECT id, fence FROM tandemq_tasks WHERE NOT {closed}", database=database))
    assert now
    assert {task_id for task_id, fence in now.items() if fence <= seen[task_id] + 1000} == set()
    restored = replace(settings, database_url=new.url(database), redis_url=own_redis().url())
    tandemq(restored, "migrate", "--check")
    gate.touch()

    (folder := tmp_path / "restored").mkdir()
    with bench(restored, folder, probe.environ) as work:
        work.worker("-c", "6").ready()
        assert work.ended([*before, *held, *retried, *later]) == {"succeeded": len(before) + 3 + 10 + 5}
        assert work.statuses(dead) == {"dead": 3}
        (new_id,) = work.ids("noop", 1)
        assert new_id > max(after)
        assert work.ended([new_id]) == {"succeeded": 1}
        tandemq(restored, "dead", "replay", "--all")
    # A token that was revoked meanwhile is good again, until the runbook's command is run.
    assert [t["revoked_at"] for t in tandemq(restored, "token", "list", "--json").json["items"]] == [None]
    assert "`tandemq token revoke ID`" in RUNBOOK.read_text()
    tandemq(restored, "token", "revoke", "mailer")

    # What the backup knows as finished did not run again; what finished after it did, once more and no oftener.
    starts = probe.starts()
    assert finished
    assert {task_id: starts[task_id] - ran[task_id] for task_id in finished if starts[task_id] != ran[task_id]} == {}
    assert all(starts[task_id] <= ran[task_id] + 1 for task_id in before)
