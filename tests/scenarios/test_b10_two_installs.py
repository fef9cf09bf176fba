"""B10: two installs on one Redis keep apart by their namespaces, and one that takes the other's is refused.

Required: each runs only its own tasks, though both number them from 1 and use every feature; each Redis key begins with
exactly one of the namespaces, once. An id that an install's database does not know is dropped without an error and
without touching the other's entry of the same number. The namespace of another database is refused at start, whoever
starts: worker, mover, reconciler, producer; nothing of the rightful owner is read, pushed or lost by it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tandemq import NewTask
from tandemq.core.errors import ForeignInstall
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, assert_settled, redis_ids, sql
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

TASKS = size(100, 500)
#: The one begins as the other does.
NAMES = ("p", "p2")
REFUSED = r"namespace.* belongs to install (\w+), this database is (?:install )?(\w+)"


class Install:
    """A bench and a probe of its own, on the Redis that both share."""

    def __init__(self, work: Bench, probe: Probe) -> None:
        self.work, self.probe = work, probe

    @property
    def install_id(self) -> str:
        return self.work.app.store.install_id()

    def use_everything(self) -> list[int]:
        """Tasks of every kind; the ids of those that will succeed."""
        app, half = self.work.app, TASKS // 2
        news = [NewTask("noop", {}, priority=p) for p in ("low", "high", -7) for _ in range(half // 3)]
        news += [NewTask("noop", {}, queue="mails", delay=0.3 + n / TASKS) for n in range(half // 2)]
        news += [NewTask("flaky", {"fails": 1}, idempotency_key=f"key{n}") for n in range(half // 4)]
        good = [handle.id for handle in app.enqueue_many(news)]
        cancelled = app.enqueue("noop", {}, queue="mails", delay=3).id
        assert app.cancel(cancelled) == "cancelled"
        again = app.enqueue("noop", {}, queue="mails", delay=3).id
        assert app.cancel(again) == "cancelled"
        assert app.dead.replay([again]).moved == 1
        bad = app.enqueue("final", {})
        assert self.work.app.get(bad.id) is not None
        while (last := app.enqueue("noop", {}).id) < TASKS:
            good.append(last)
        return [*good, last, again]


@pytest.fixture
def installs(
    mysql_server: MySQLServer, redis_url: str, settings_for: Callable[..., Settings], tmp_path: Path
) -> Iterator[list[Install]]:
    made, benches = [], []
    names = {namespace: mysql_server.create_database() for namespace in NAMES}
    for namespace, database in names.items():
        folder = tmp_path / namespace
        folder.mkdir()
        settings = settings_for(mysql_server.url(database), redis_url, namespace=namespace, **CALM)
        probe = Probe(folder / "probe")
        benches.append(bench(settings, folder, probe.environ))
        made.append(Install(benches[-1].__enter__(), probe))
    yield made
    for one in benches:
        one.__exit__(None, None, None)
    for database in names.values():
        mysql_server.drop_database(database)


def test_each_runs_its_own_though_all_ids_are_the_same(installs: list[Install], redis_client: redis.Redis) -> None:
    wanted = [one.use_everything() for one in installs]
    assert wanted[0] == wanted[1]
    for one, ids in zip(installs, wanted, strict=True):
        one.work.worker("-q", "default,mails", "-c", "4")
        one.work.ended(ids)
    keys = {key.decode() for key in redis_client.keys("*")}

    for one, ids in zip(installs, wanted, strict=True):
        assert one.work.statuses(ids) == {"succeeded": len(ids)}
        assert set(one.probe.ends()) == set(ids)
        assert max(one.probe.ends().values()) == 1
        assert {mark.pid for mark in one.probe.marks()} == {
            child.pid for w in one.work.workers for child in w.children()
        }
        states = dict(sql(one.work, "SELECT status, COUNT(*) FROM {t}tasks GROUP BY status"))
        assert states == {"succeeded": len(ids), "cancelled": 1, "dead": 1}
        assert_settled(one.work, one.probe, ids)
    for key in keys:
        prefix, _, rest = key.partition(":")
        assert prefix in NAMES, key
        assert not re.search(r"(^|:)p2?:", rest), f"{key}: a prefix twice"
    # Lists and sorted sets come and go: the cancelled task that was delayed stays in one until it is due.
    lasting = [key for key in keys if not re.search(":(ready|delayed):", key)]
    bare = {name: {key.partition(":")[2] for key in lasting if key.startswith(f"{name}:")} for name in NAMES}
    assert bare["p"] == bare["p2"] != set()


def test_an_id_that_one_database_does_not_know_is_dropped_there_alone(
    installs: list[Install], redis_client: redis.Redis
) -> None:
    first, second = installs
    first.work.ids("noop", 3)
    ids = second.work.ids("noop", 10)
    for name in NAMES:
        redis_client.lpush(f"{name}:{{default}}:ready:0", *range(1_000, 1_020))
    first.work.burst("-c", "2")

    assert first.probe.starts().total() == 3
    eventually(lambda: redis_ids(first.work) == [], message=lambda: redis_ids(first.work))
    assert redis_ids(second.work) == sorted([*ids, *range(1_000, 1_020)])
    second.work.burst("-c", "2")
    second.probe.assert_once(ids)
    for one in installs:
        assert not re.search("Traceback|ERROR", one.work.workers[0].text())


def test_the_others_namespace_is_refused_by_whoever_starts(
    installs: list[Install], redis_client: redis.Redis, tmp_path: Path
) -> None:
    owner, stranger = installs
    ids = owner.work.ids("noop", 5)
    delayed = owner.work.app.enqueue("noop", {}, delay=0.1).id
    tandemq(owner.work.settings, "reconcile", "--once", code=0)
    # The whole of somebody else's configuration of Redis, whose user may touch that namespace only.
    theirs = owner.work.settings
    wrong = replace(stranger.work.settings, namespace=theirs.namespace, redis_url=theirs.redis_url)
    before = {key: redis_client.dump(key) for key in redis_client.keys("*")}
    (tmp_path / "wrong").mkdir()

    with bench(wrong, tmp_path / "wrong", stranger.probe.environ) as work:
        worker = work.worker("-c", "2")
        assert worker.wait() == 1
        said = re.search(REFUSED, worker.text())
        assert said is not None, worker.text()
        assert said.groups() == (owner.install_id, stranger.install_id)
        for arguments in (["reconcile", "--once"], ["dead", "replay", "1"]):
            answer = tandemq(wrong, *arguments, code=1)
            assert re.search(REFUSED, answer.out + answer.err) or "replay" in arguments, answer
        mover = work.worker(verb="mover")
        eventually(lambda: re.search(REFUSED, mover.text()), 60, mover.text)
        with pytest.raises(ForeignInstall, match=REFUSED):
            work.app.push([1])
        stored = work.app.enqueue("noop", {}).id  # a row is a promise, wherever its id goes
    after = {key: redis_client.dump(key) for key in redis_client.keys("*")}
    assert after == before, "the stranger has touched the owner's keys"

    stranger.work.burst("-c", "2")
    owner.work.burst("-c", "2")
    stranger.probe.assert_once([stored])
    assert owner.work.ended([*ids, delayed]) == {"succeeded": 6}
    owner.probe.assert_once([*ids, delayed])
    shutil.rmtree(tmp_path / "wrong")
