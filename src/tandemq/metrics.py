"""Counters and histograms of this process, for Prometheus: one call per batch, after the commit that it tells of.

They need the extra ``tandemq[metrics]``; without it every function here is a no-op. prometheus_client is imported by
the first call, not with tandemq. Nothing here ever raises: what is counted has happened already. Mappings go from
label values to how many. See ``docs/adr/0010-metrics.md``, also for how several processes become one page.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec

from tandemq.ownfolder import own_folder
from tandemq.series import MULTIPROC_DIR, Counted, Known
from tandemq.timing import RUN_S, WAIT_S, Timed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

P = ParamSpec("P")

_log = logging.getLogger("tandemq.metrics")
_ATTEMPTS = tuple(map(str, range(10)))
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class _Meters:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Gauge, Histogram

        self.registry = r = CollectorRegistry()
        known = Known(_number)
        self.has_failed = False
        self.enqueued = Counted(r, known, "enqueued", "Tasks stored.", "queue", "type")
        self.pushed = Counted(r, known, "pushed", "Ids pushed to Redis after an enqueue.", "queue")
        self.promoted = Counted(r, known, "promoted", "Ids moved from the delayed to the ready ones.", "queue")
        self.repushed = Counted(r, known, "repushed", "Ids that were missing in Redis and were pushed again.", "queue")
        self.claimed = Counted(r, known, "claimed", "Tasks claimed by a worker.", "queue", "type")
        self.dropped = Counted(r, known, "dropped", "Popped ids that no pending row stood behind (ghosts).", "queue")
        self.finished = Counted(r, known, "finished", "Claimed tasks settled, by outcome.", "queue", "type", "outcome")
        self.retried = Counted(r, known, "retried", "Failed attempts that are tried again.", "type", "attempt")
        self.dead = Counted(r, known, "dead", "Tasks that ended dead.", "type", "reason")
        self.fenced = Counted(r, known, "fenced", "Results refused because their lease was lost.")
        self.leases_lost = Counted(r, known, "leases_lost", "Runs whose lease ended before them: their process died.")
        self.http = Counted(
            r, known, "http_requests", "Requests to the HTTP API, answered or given up.", "route", "status"
        )
        self.http_cut = Counted(r, known, "http_cut", "Connections that the HTTP API closed by itself.", "reason")
        text = "Time from the head of a request to the end of its answer; claims may wait."
        self.http_s = Histogram("tandemq_http_request_seconds", text, ("route",), registry=r, buckets=_SECONDS)
        self.http_s_of: dict[str, Histogram] = {}
        self.claim_size = Histogram("tandemq_claim_batch_size", "Tasks of one claim.", registry=r, buckets=_SIZES)
        self.finish_size = Histogram("tandemq_finish_batch_size", "Tasks of one finish.", registry=r, buckets=_SIZES)
        self.claim_s = Histogram("tandemq_claim_seconds", "Time of one claim.", registry=r, buckets=_SECONDS)
        self.finish_s = Histogram("tandemq_finish_seconds", "Time of one finish.", registry=r, buckets=_SECONDS)
        self.wait_s = Timed(r, "queue_latency_seconds", "From due to begun.", "queue", WAIT_S, known)
        self.run_s = Timed(r, "run_seconds", "Run time of attempts that ended.", "type", RUN_S, known)
        self.database_errors = Counted(r, known, "database_errors", "Failed tries of the database, by class.", "class")
        self.redis_errors = Counted(r, known, "redis_errors", "Failed calls of Redis, by class.", "class")
        self.breaker_opened = Counted(r, known, "breaker_opened", "Times that pushes began to fail at once.")
        text = "Processes whose pushes fail at once, because Redis was away when it was last tried."
        self.breaker_open = Gauge("tandemq_breaker_open", text, registry=r, multiprocess_mode="sum")
        self.breaker_open.set(0)  # a process goes on with the values of the one whose place it takes


_making = threading.Lock()
_is_made = False
_number: int | None = None
_meters: _Meters | None = None


def _make() -> _Meters | None:
    global _is_made, _meters
    with _making:
        if not _is_made:
            try:
                _meters = _Meters()
            except ImportError:
                _log.debug("prometheus_client is not installed: nothing is counted")
            except Exception as broken:  # say, PROMETHEUS_MULTIPROC_DIR names no directory
                _log.warning("nothing is counted, metrics cannot be made: %s: %s", type(broken).__name__, broken)
            _is_made = True
    return _meters


def _forget() -> None:
    """In a forked child: its counts begin at zero, and a lock that another thread held then is nobody's now.

    What a numbered process forks is not counted: its files are its parent's.
    """
    global _making, _is_made, _meters
    _making, _is_made, _meters = threading.Lock(), _number is not None, None


os.register_at_fork(after_in_child=_forget)


def _recorded(record: Callable[Concatenate[_Meters, P], None]) -> Callable[P, None]:
    """The public function: a no-op without metrics, and never an error."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        meters = _meters if _is_made else _make()
        if meters is None:
            return
        try:
            record(meters, *args, **kwargs)
        except Exception as broken:
            if not meters.has_failed:
                meters.has_failed = True
                _log.warning("not all is counted: %s: %s", type(broken).__name__, broken)

    call.__name__, call.__doc__ = record.__name__, record.__doc__
    return call


def registry() -> CollectorRegistry | None:
    """The registry to expose; None without prometheus_client. Not the library's global one: that is the user's."""
    meters = _meters if _is_made else _make()
    return meters.registry if meters else None


class MetricsPage(NamedTuple):
    """What Prometheus is answered."""

    text: bytes
    content_type: str


def page() -> MetricsPage | None:
    """All metrics in Prometheus' text format; None without prometheus_client.

    Of this process, or with PROMETHEUS_MULTIPROC_DIR of all that share that folder, then read from its files.
    """
    found: CollectorRegistry | None = registry()
    if found is None:
        return None
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    if os.environ.get(MULTIPROC_DIR):
        MultiProcessCollector(found := CollectorRegistry())  # type: ignore[no-untyped-call]
    return MetricsPage(generate_latest(found), CONTENT_TYPE_LATEST)


def number_process(number: int) -> None:
    """This process is the ``number``-th of several that share PROMETHEUS_MULTIPROC_DIR; what it counted is dropped.

    A process that takes the place of one that died goes on with its files: nothing is lost, no counter goes back.
    """
    global _is_made, _meters, _number
    try:
        from prometheus_client import values
    except ImportError:
        return
    pid = os.getpid()

    def identity() -> int:
        # Metrics of an application's own, in a process that a handler forked: not into the parent's files.
        return number if os.getpid() == pid else os.getpid()

    values.ValueClass = values.MultiProcessValue(identity)  # type: ignore[no-untyped-call]
    _is_made, _meters, _number = False, None, number


def is_numbered() -> bool:
    """Whether this process is one of several; those that it starts must be numbered too."""
    return _number is not None


@contextlib.contextmanager
def shared_folder() -> Iterator[None]:
    """Until the end of the block this process and those it starts show their metrics on one page: see ``registry``.

    By a folder of their own, in which this process is number 0, unless PROMETHEUS_MULTIPROC_DIR names one already.
    """
    if os.environ.get(MULTIPROC_DIR):
        yield
        return
    with own_folder() as folder:
        os.environ[MULTIPROC_DIR] = folder
        number_process(0)
        try:
            yield
        finally:
            del os.environ[MULTIPROC_DIR]


@_recorded
def enqueued(meters: _Meters, counts: Mapping[tuple[str, str], int]) -> None:
    """Tasks stored, by (queue, type); not those that a key found."""
    meters.enqueued.add(counts.items())


@_recorded
def pushed(meters: _Meters, queue: str, n: int) -> None:
    """Ids that a producer pushed, to the ready or the delayed ones."""
    meters.pushed.add((((queue,), n),))


@_recorded
def promoted(meters: _Meters, queue: str, n: int) -> None:
    """Ids that the mover moved."""
    meters.promoted.add((((queue,), n),))


@_recorded
def repushed(meters: _Meters, queue: str, n: int) -> None:
    """Ids that the reconciler found missing and pushed again."""
    meters.repushed.add((((queue,), n),))


@_recorded
def claimed(meters: _Meters, counts: Mapping[tuple[str, str], int], seconds: float) -> None:
    """One claim: tasks by (queue, type), and the time that the database took."""
    meters.claimed.add(counts.items())
    meters.claim_size.observe(sum(counts.values()))
    meters.claim_s.observe(seconds)


@_recorded
def dropped(meters: _Meters, queue: str, n: int) -> None:
    """Popped ids whose rows were running, final or missing."""
    meters.dropped.add((((queue,), n),))


@_recorded
def finished(meters: _Meters, counts: Mapping[tuple[str, str, str], int], seconds: float) -> None:
    """One finish: tasks by (queue, type, outcome), and the time that the database took. Fenced ones are not in it.

    An outcome is one of ``task_counts`` (succeeded, retried, dead, cancelled), or ``released``: handed back.
    """
    meters.finished.add(counts.items())
    meters.finish_size.observe(sum(counts.values()))
    meters.finish_s.observe(seconds)


@_recorded
def retried(meters: _Meters, counts: Mapping[tuple[str, int], int]) -> None:
    """Attempts that failed and are tried again, by (type, number of the attempt); from 10 on they are one."""
    meters.retried.add(((kind, _ATTEMPTS[a] if 0 <= a < 10 else "10+"), n) for (kind, a), n in counts.items())


@_recorded
def dead(meters: _Meters, counts: Mapping[tuple[str, str], int]) -> None:
    """Tasks that ended dead, by (type, reason), whoever ended them."""
    meters.dead.add(counts.items())


@_recorded
def fenced(meters: _Meters, n: int) -> None:
    """Results that came after their lease was lost."""
    meters.fenced.add((((), n),))


@_recorded
def leases_lost(meters: _Meters, n: int) -> None:
    """Begun runs that were ended because their process, or its contact with the database, was gone."""
    meters.leases_lost.add((((), n),))


@_recorded
def http_request(meters: _Meters, route: str, status: int, seconds: float) -> None:
    """A request that has ended; ``status`` 0 is a client that went away first. ``route`` is a name of the table."""
    meters.http.add((((route, str(status)), 1),))
    timed = meters.http_s_of.get(route)
    if timed is None:
        timed = meters.http_s_of[route] = meters.http_s.labels(route)
    timed.observe(seconds)


@_recorded
def http_cut(meters: _Meters, reason: str) -> None:
    """A connection that was closed for being slow, idle, one too many, or no HTTP."""
    meters.http_cut.add((((reason,), 1),))


@_recorded
def ran(meters: _Meters, runs: Sequence[tuple[str, str, float, float, int]]) -> None:
    """Attempts that ended: (queue, type, seconds from due to begun, seconds of the run, for how many it stands)."""
    if not runs:
        return
    meters.wait_s.add([(queue, waited_s, n) for queue, _, waited_s, _, n in runs])
    meters.run_s.add([(kind, ran_s, n) for _, kind, _, ran_s, n in runs])


@_recorded
def database_error(meters: _Meters, kind: str) -> None:
    """A try of a transaction failed; ``kind`` is a name of ``store.errors.Kind``."""
    meters.database_errors.add((((kind,), 1),))


@_recorded
def redis_error(meters: _Meters, kind: str) -> None:
    """A call of Redis failed; ``kind`` is one of few names."""
    meters.redis_errors.add((((kind,), 1),))


@_recorded
def breaker(meters: _Meters, is_open: bool) -> None:
    """The circuit breaker of this process has opened, or closed."""
    meters.breaker_open.set(int(is_open))
    if is_open:
        meters.breaker_opened.add((((), 1),))
