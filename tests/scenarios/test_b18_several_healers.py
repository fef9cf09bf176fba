"""B18: several movers and reconcilers at once, killed over and over or all of them leading, run nothing twice.

Required: with three movers, three reconcilers and many workers, thousands of tasks that are due at once and hundreds
that come meanwhile each run once, in one attempt; useless copies of ids are gone when all is done. Whoever leads may be
killed at every moment, and all may lead at once: leadership saves work, nothing depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

import psutil
import pytest
import redis

from tandemq import NewTask
from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, push_by_hand, sql
from tests.waiting import eventually
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900), pytest.mark.usefixtures("calm")]

#: Of each of two waves; the stream beside it goes on until there was trouble enough.
DUE, MEANWHILE, COPIES = size((2500, 250, 250), (5000, 500, 500))
DUE_WITHIN_S, STREAM_EVERY_S, WAVE_S = 2.0, 0.01, 180.0
KILLS, FLUSH_AT_STRIKE = size(3, 20), 5
HEALERS = 3
WORKERS, PROCESSES = size((2, 2), (8, 1))
#: Enough of them for every mover and reconciler to meet the others' work.
PACE = {"TANDEMQ_RECONCILE_S": "0.3", "TANDEMQ_MOVER_S": "0.05"}
ALONE = ["--no-mover", "--no-reconcile"]
ROLES = {"mover": "mover", "reconcile": "reconciler"}
PRIORITIES = ("low", "medium", "high", "critical")


class Healers:
    """Three of each role, as processes of their own."""

    def __init__(self, work: Bench, client: redis.Redis) -> None:
        self._work, self.client = work, client
        self.of = {verb: [self._start(verb) for _ in range(HEALERS)] for verb in ROLES}
        self.kills = dict.fromkeys(ROLES, 0)

    def _start(self, verb: str) -> Worker:
        return self._work.worker(verb=verb, **PACE)

    def ready(self) -> None:
        for verb, role in ROLES.items():
            for healer in self.of[verb]:
                eventually(lambda healer=healer, role=role: f"{role} runs" in healer.text(), 60, healer.text)

    def acting(self, verb: str) -> list[Worker]:
        """Those that work, as Redis tells: one that does not lead asks MySQL only, and needs no such connection."""
        serving = {int(c["addr"].rpartition(":")[2]) for c in self.client.client_list() if c["name"] == "tandemq-serve"}
        return [healer for healer in self.of[verb] if serving & ports(healer.pid)]

    def kill_leader(self, verb: str) -> None:
        """SIGKILL whoever acts in this role; another process takes its place."""
        for leader in self.acting(verb):
            leader.kill_group()
            self._work.workers.remove(leader)
            self.of[verb][self.of[verb].index(leader)] = self._start(verb)
            self.kills[verb] += 1


def ports(pid: int) -> set[int]:
    try:
        return {c.laddr.port for c in psutil.Process(pid).net_connections(kind="tcp")}
    except psutil.Error:
        return set()


def vacate(work: Bench) -> None:
    """Every role is free: whoever asks next leads, beside those that believe that they do."""
    sql(work, "DELETE FROM {t}leaders")


class Stream:
    """A producer beside the load: tasks that come one by one, now or soon, until the end of the ``with`` block."""

    def __init__(self, work: Bench, rng: Random) -> None:
        self.ids: list[int] = []
        self._work, self._rng, self._over = work, rng, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(STREAM_EVERY_S):
            delay, priority = self._rng.choice([None, 0.3, 1.0]), self._rng.choice(PRIORITIES)
            self.ids.append(self._work.app.enqueue("noop", {"n": 0}, delay=delay, priority=priority).id)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()


def wave(
    work: Bench, rng: Random, strike: Callable[[], None], every_s: float, is_enough: Callable[[], bool]
) -> list[int]:
    """A load that comes due at once and a stream beside it, with a strike every so often until all of it is done."""
    news = [
        NewTask("noop", {"n": n}, delay=rng.uniform(0.5, 0.5 + DUE_WITHIN_S), priority=rng.choice(PRIORITIES))
        for n in range(DUE)
    ]
    ids = [handle.id for handle in work.app.enqueue_many(news)]
    deadline = time.monotonic() + WAVE_S

    def strike_until(is_over: Callable[[], bool]) -> None:
        while not is_over():
            assert time.monotonic() < deadline, work.app.admin.stats()
            strike()
            time.sleep(every_s)

    with Stream(work, rng) as stream:
        push_by_hand(work, rng.sample(ids, COPIES))  # among them ids that are not due yet, and of other priorities
        strike_until(lambda: is_enough() and len(stream.ids) >= MEANWHILE)
    strike_until(lambda: not any(work.app.admin.stats()["queues"].values()))
    return ids + stream.ids


def test_several_movers_and_reconcilers_at_once(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    rng = Random(18)
    healers = Healers(work, redis_client)
    workers = [work.worker("-p", str(PROCESSES), "-c", "4", *ALONE) for _ in range(WORKERS)]
    for worker in workers:
        wait_until_blocked(redis_client, worker.ready(), PROCESSES)
    healers.ready()

    def kill_leaders() -> None:
        for verb in ROLES:
            healers.kill_leader(verb)
        vacate(work)  # or nobody would lead, and nobody could be killed, before the dead one's time has run out

    def killed_enough() -> bool:
        return min(healers.kills.values()) >= KILLS

    most, strikes = dict.fromkeys(ROLES, 0), 0

    def let_all_lead() -> None:
        nonlocal strikes
        vacate(work)
        for verb in [verb for verb in ROLES if most[verb] < HEALERS]:
            most[verb] = max(most[verb], len(healers.acting(verb)))
        strikes += 1
        if strikes == FLUSH_AT_STRIKE:
            redis_client.flushall()

    def all_have_led() -> bool:
        return most == dict.fromkeys(ROLES, HEALERS) and strikes > FLUSH_AT_STRIKE

    ids = wave(work, rng, kill_leaders, size(0.6, 1.0), killed_enough)
    healers.ready()
    ids += wave(work, rng, let_all_lead, 0.2, all_have_led)

    probe.assert_once(ids)
    assert sql(work, "SELECT attempts, COUNT(*) FROM {t}tasks GROUP BY attempts") == [(1, len(ids))]
    assert_settled(work, probe, ids)
