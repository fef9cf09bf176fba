"""Short runs with one fault at a chosen moment, judged like the long ones: what a mutant of the product is tried on.

``python -m tests.chaos.directed NAME MYSQL_URL FOLDER`` prints the verdict; exit code 1 if something is wrong. Which
tandemq is tried follows from PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tandemq import EnqueueUnknown, StoreUnavailable, TandemQ
from tests.chaos.checker import check
from tests.chaos.ledger import Expectation, now, read
from tests.chaos.site import Site, wait
from tests.chaos.tasks import EXPECTED, new
from tests.servers import ExternalMySQL, RedisServer

#: An enqueue answers within this time whatever happens to Redis or to a worker; and what a drain may take.
ANSWER_S, DRAIN_S = 5.0, float(os.environ.get("CHAOS_DRAIN_S", "30"))
ALONE = ("--no-mover", "--no-reconcile")
NOBODY = 2**40


class Hung(Exception):
    """An enqueue took too long: the verdict is clear."""


class Client:
    """A producer in this process, with the same ledger."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.app = TandemQ(site.settings.database_url, site.settings.redis_url, site.settings.namespace)
        self.engine = sa.create_engine(site.settings.database_url)

    def enqueue(self, *refs: str, kind: str = "plain", of: str = "", **options: Any) -> list[int]:
        """One call for all refs; their ids."""
        expected = EXPECTED[of or kind]
        begun = now()
        self.site.ledger.intent(dict.fromkeys(refs, expected))
        said, ids = "ok", []
        try:
            ids = [handle.id for handle in self.app.enqueue_many([new(kind, ref, **options) for ref in refs])]
        except EnqueueUnknown:
            said = "info"
        except StoreUnavailable:
            said = "fail"
        self.site.ledger.outcome(refs, said)
        if now() - begun > ANSWER_S:
            raise Hung
        return ids

    def chain(self, base: str, last: int, **options: Any) -> None:
        """The first link of a chain."""
        self.site.ledger.intent({f"{base}/0": Expectation(kind="link", effect=False, last=last)})
        self.app.enqueue_many([new("link", base, chain=base, n=0, last=last, **options)])
        self.site.ledger.outcome([f"{base}/0"], "ok")

    def in_transaction(self, ref: str, before_commit_s: float) -> None:
        """Enqueue on a connection of our own, and take our time before the commit."""
        self.site.ledger.intent({ref: EXPECTED["plain"]})
        with self.engine.begin() as connection:
            self.app.enqueue_many([new("plain", ref)], connection=connection)
            time.sleep(before_commit_s)
        self.site.ledger.outcome([ref], "ok")


def begun(site: Site) -> list[str]:
    """The refs of all runs so far."""
    return [event["ref"] for event in read(site.ledger_folder) if event["e"] == "exec"]


def drain(site: Site) -> None:
    """Give everything its time to end; what has not is the checker's."""
    wait(lambda: site.open_rows() == 0, DRAIN_S, every_s=0.1)


def zombie(site: Site, client: Client, enqueue: Callable[[], object]) -> None:
    """A worker sleeps beyond its lease inside a handler, and ends its work while its successor is at it."""
    first = site.worker("first", *ALONE)
    first.ready()
    enqueue()
    wait(lambda: begun(site), 20)
    time.sleep(0.2)
    second = site.worker("second")
    first.signal(signal.SIGSTOP)
    wait(lambda: len(begun(site)) == 2, 20)
    for child in first.children():
        child.resume()
    time.sleep(0.7)
    first.signal(signal.SIGCONT)
    drain(site)
    time.sleep(0.5)
    second.signal(signal.SIGTERM)


def zombie_finishes(site: Site, client: Client) -> None:
    """... its result must be refused."""
    zombie(site, client, lambda: client.enqueue("z", kind="slow", seconds=1.5))


def zombie_commits(site: Site, client: Client) -> None:
    """... what it has written in the task's own transaction must be rolled back."""
    zombie(site, client, lambda: client.chain("z", 0, seconds=1.5))


def copies(site: Site, client: Client) -> None:
    """Ids of ended tasks are in the list again, as after a restored snapshot."""
    site.worker("w", *ALONE)
    ids = client.enqueue(*(f"c{i}" for i in range(8)), of="once", max_retries=0)
    drain(site)
    with site.redis.client() as redis:
        for _ in range(2):
            redis.lpush(site.ready_key(), *ids)
            wait(lambda: not redis.llen(site.ready_key()), 10)
    time.sleep(1.0)


def killed_inside(site: Site, client: Client) -> None:
    """kill -9 while a handler is between its beginning and its effect."""
    first = site.worker("first", *ALONE)
    first.ready()
    client.enqueue("k", kind="slow", seconds=1.5)
    wait(lambda: begun(site), 20)
    time.sleep(0.7)
    first.kill()
    site.worker("second")
    drain(site)


def lost_pop(site: Site, client: Client) -> None:
    """Redis pops an id, and the answer is lost on the way."""
    site.worker("w")
    client.enqueue("before")
    drain(site)
    with site.redis.client() as redis:

        def is_lost() -> bool:
            return site.open_rows() == 1 and not redis.llen(site.ready_key())

        # The pop that was under way when the fault was armed has passed the proxy; one without an id loses nothing.
        for n in range(20):
            site.redis_proxy.swallow(b"brpop")
            client.enqueue(f"p{n}")
            if not wait(lambda: not site.open_rows(), 0.7) and is_lost():
                break
            wait(lambda: not site.open_rows(), 5)
    site.redis_proxy.disarm()
    drain(site)


def flushed(site: Site, client: Client) -> None:
    """FLUSHALL with tasks waiting."""
    first = site.worker("first")
    client.enqueue("before")
    drain(site)
    time.sleep(1.0)
    first.signal(signal.SIGTERM, group=False)
    wait(lambda: not first.alive, 10)
    client.enqueue(*(f"f{n}" for n in range(20)))
    site.redis.flush()
    site.worker("second")
    drain(site)


def black_hole(site: Site, client: Client) -> None:
    """Redis neither answers nor resets."""
    client.enqueue("before")
    site.redis_proxy.silent = True
    client.enqueue("during")
    site.redis_proxy.silent = False
    site.worker("w")
    drain(site)


def stopped_claim(site: Site, client: Client) -> None:
    """A worker is stopped inside its claim's transaction, for an id beyond the last row."""
    first = site.worker("first", *ALONE, crash="claim.before_commit:2:stop")
    with site.redis.client() as redis:
        redis.sadd(f"{site.settings.namespace}:queues", "default")
        client.enqueue("before", delay=3600.0)  # makes the level known
        redis.lpush(site.ready_key(), NOBODY)
    wait(first.hits, 20)
    wait(lambda: len(first.hits()) == 1, 5)
    client.enqueue("during")
    first.kill()
    site.sql("UPDATE {t}tasks SET run_at = UTC_TIMESTAMP(6) WHERE status = 'pending'")
    site.worker("second")
    drain(site)


def lost_worker(site: Site, client: Client) -> None:
    """kill -9 of a worker that runs tasks which must not begin twice."""
    first = site.worker("first", *ALONE)
    first.ready()
    client.enqueue(*(f"o{n}" for n in range(3)), kind="slow", of="once", seconds=1.0, max_retries=0)
    wait(lambda: len(begun(site)) == 3, 20)
    first.kill()
    site.worker("second")
    drain(site)


def calm(site: Site, client: Client) -> None:
    """No fault at all, and nobody to heal: commit, then push, then all is done."""
    site.worker("w", *ALONE)
    client.enqueue("before")
    drain(site)
    for n in range(5):
        client.in_transaction(f"t{n}", 0.2)
    wait(lambda: site.open_rows() == 0, 5, every_s=0.1)


def rows_locked(site: Site, client: Client) -> None:
    """Two rows of a lost lease are locked by others; one is let go: it must not wait for the other."""
    ids = client.enqueue(*(f"l{n}" for n in range(3)), kind="slow", seconds=0.8)
    first = site.worker("first", *ALONE)
    wait(lambda: len(begun(site)) == 3, 20)
    first.kill()
    if site.sql("SELECT COUNT(DISTINCT lease_token) FROM {t}tasks")[0][0] != 1:
        site.ledger.surprise("the three were not claimed together: the scenario shows nothing")
    holders = [site.mysql.connect(site.database, autocommit=False) for _ in range(2)]
    for holder, task_id in zip(holders, ids, strict=False):
        holder.cursor().execute(f"SELECT id FROM {site.settings.table_prefix}tasks WHERE id = {task_id} FOR UPDATE")
    site.worker("second")

    def ended(task_id: int) -> bool:
        return bool(site.sql("SELECT ended FROM {t}tasks WHERE id = %s", (task_id,))[0][0])

    wait(lambda: ended(ids[2]), DRAIN_S)
    holders[0].rollback()
    if not wait(lambda: ended(ids[0]), 6):
        site.ledger.surprise("a task was not given up as long as another of its lease was locked")
    holders[1].rollback()
    drain(site)


SCENARIOS: dict[str, Callable[[Site, Client], None]] = {
    one.__name__: one
    for one in (zombie_finishes, zombie_commits, copies, killed_inside, lost_pop, flushed, black_hole, stopped_claim,
                lost_worker, calm, rows_locked)
}  # fmt: skip


def main(name: str, url: str, folder: str) -> int:
    """Run one; its verdict as JSON."""
    redis = RedisServer()
    redis.start()
    with Site(ExternalMySQL(url), redis, Path(folder)) as site:
        client = Client(site)
        try:
            SCENARIOS[name](site, client)
        except Hung:
            pass
        site.note_finals()
    redis.discard()
    verdict = check(read(site.ledger_folder), answer_s=ANSWER_S)
    print(json.dumps(verdict.to_json()))
    return 0 if verdict.valid else 1


if __name__ == "__main__":
    os.environ.pop("TANDEMQ_CRASH", None)
    sys.exit(main(*sys.argv[1:]))
