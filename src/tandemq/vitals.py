"""Does the worker here do its work just now? A real question to both servers, and the worker's own last word.

For container probes: bounded in time however the servers hang, and red when a worker only looks alive. The worker's
record moves with every heartbeat, and says ``stuck`` when one of its loops, or a child's look for work, turns no more,
``late`` when the turns of a loop go on failing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import Unavailable
from tandemq.core.task import Level
from tandemq.doctor import unsafe
from tandemq.links import Links
from tandemq.store.answers import WorkerRecord

#: All questions together may take this long; what has not answered by then is away.
LIMIT_S = 2.5
#: Beats of the heart that may be missed, and never less patience than this.
BEATS, LEAST_S = 3, 10.0
#: Levels whose keys are looked at.
MAX_LEVELS = 200
GOOD_STATES = frozenset({"running", "draining"})
_MEANING = {
    "stuck": ": a part of it hangs, start it anew",
    "late": ": a loop of it has had no good turn lately, its log says why",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What was found. ``database`` and ``redis``: "" or why not. ``workers``: what is wrong with them.

    ``warnings``: settings of the servers under which tasks or ids can be lost; they make nothing unhealthy.
    """

    database: str
    redis: str
    workers: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_reachable(self) -> bool:
        """Both servers have answered."""
        return not (self.database or self.redis)

    @property
    def is_healthy(self) -> bool:
        """All is well."""
        return self.is_reachable and not self.workers

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI."""
        return {
            "healthy": self.is_healthy,
            "database": self.database or "ok",
            "redis": self.redis or "ok",
            "worker": list(self.workers) or "ok",
            "warnings": list(self.warnings),
        }


class _Asked:
    """One question in a thread of its own: a driver waits longer for a server that hangs than a probe may."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except BaseException as error:  # told to whoever waits
            self._error = error

    def get(self, clock: Clock, until: float) -> tuple[Any, str]:
        """The answer, and why there is none; raises what is no server's absence."""
        self._thread.join(max(0.0, until - clock.monotonic()))
        if self._thread.is_alive():
            return None, f"no answer within {LIMIT_S:g} s"
        if self._error is None:
            return self._answer, ""
        if isinstance(self._error, Unavailable):
            return None, str(self._error)
        raise self._error


def look(links: Links, *, worker: str | None = None, every: bool = False, max_age_s: float | None = None) -> Vitals:
    """Ask both servers and look at the record of the workers of this host, of one by name or id, or of ``every`` one.

    ``max_age_s``: the oldest heartbeat that is allowed; three beats by default. Raises NotMigrated.
    """
    clock = SystemClock()
    until = clock.monotonic() + LIMIT_S
    age_s = max(BEATS * links.settings.heartbeat_s, LEAST_S) if max_age_s is None else max_age_s
    # Connections of their own, unchecked: what is wrong with them is the question.
    with links.unchecked() as (store, broker):
        records, written = _Asked(lambda: store.workers(alive_s=age_s)), _Asked(broker.check_writable)
        found, database = records.get(clock, until)
        _, redis = written.get(clock, until)
        if not redis:
            redis = _Asked(lambda: _foreign_keys(broker)).get(clock, until)[0] or ""
        warnings: Sequence[Any] = ()
        if not database and not redis:
            warnings = _Asked(lambda: unsafe(store, broker)).get(clock, until)[0] or ()
    wrong = [] if database else _wrong(found, worker, every=every, age_s=age_s)
    sentences = tuple(finding.sentence for finding in warnings)
    return Vitals(database=database, redis=redis, workers=tuple(wrong), warnings=sentences)


def _foreign_keys(broker: Broker) -> str:
    """Keys of ours of which somebody made something else: no id gets through there, though Redis answers."""
    levels = [Level(queue, priority) for queue in sorted(broker.queues()) for priority in sorted(broker.levels(queue))]
    wrong = broker.wrong_types(levels[:MAX_LEVELS])
    if not wrong:
        return ""
    key, kind = min(wrong.items())
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"the key {key} is a {kind} that tandemq did not make{more}: see tandemq doctor"


def _wrong(records: Sequence[WorkerRecord], name: str | None, *, every: bool, age_s: float) -> list[str]:
    """What is wrong with the workers that are meant; none of them at all is wrong too."""
    host = socket.gethostname()
    there = [record for record in records if record.state != "stopped"]
    if name:
        there = [record for record in there if name in {record.name, record.id}]
    elif not every:
        there = [record for record in there if record.host == host[:255]]
    alive = [record for record in there if record.alive]
    wrong = [
        f"worker {record.id} is {record.state}{_MEANING.get(record.state, '')}"
        for record in alive
        if record.state not in GOOD_STATES
    ]
    if every:
        wrong += [f"worker {r.id} has been silent for more than {age_s:g} s" for r in there if not r.alive]
    # One record is enough: another that was killed stays listed for an hour, beside the worker that took its place.
    if not alive:
        whose = f"of the name {name}" if name else "on any host" if every else f"on this host ({host})"
        wrong.append(f"no worker {whose} has been heard of within {age_s:g} s")
    return wrong
