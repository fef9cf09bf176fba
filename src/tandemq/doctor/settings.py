"""Judges the settings: what is allowed, and unwise. What cannot work is refused at start and never gets here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandemq.core.settings import Settings
from tandemq.doctor.finding import Finding, Grade
from tandemq.registry import RegisteredTask

#: A statement that hangs gives up after 10 s: leases should outlive one.
SHORT_LEASE_S, LONG_LEASE_S = 12.0, 3600.0
#: Renewals that should fit into a lease.
BEATS = 3
LONG_PASS_S, LONG_MOVE_S, SHORT_UNKNOWN_S = 60.0, 5.0, 60.0
NAMED = 5


def judge(settings: Settings, tasks: Iterable[RegisteredTask]) -> Iterator[Finding]:
    """Combinations of settings, then the registered tasks' time limits."""
    yield _servers(settings)
    if settings.crash:
        says = f"TANDEMQ_CRASH={settings.crash} makes processes of tandemq die on purpose, wanted none"
        yield Finding("settings.crash", Grade.FAULT, says, "unset TANDEMQ_CRASH")
    yield _lease(settings)
    yield _heartbeat(settings)
    yield from _paces(settings)
    yield from _limits(settings, list(tasks))


def _servers(settings: Settings) -> Finding:
    if settings.is_embedded:
        says = "no URLs are set, so this is the embedded default (SQLite and a look-alike of Redis): wanted both"
        remedy = "set TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL in production"
        return Finding("settings.servers", Grade.INFO, f"{says} in production", remedy)
    return Finding("settings.servers", Grade.OK, f"both URLs are set, the namespace is {settings.namespace!r}")


def _lease(settings: Settings) -> Finding:
    name, lease_s = "settings.lease", settings.lease_s
    if lease_s < SHORT_LEASE_S:
        says = f"TANDEMQ_LEASE_S is {lease_s:g}, wanted {SHORT_LEASE_S:g} or more: one statement that hangs (10 s)"
        return Finding(name, Grade.WARNING, f"{says} costs a worker all its leases", "TANDEMQ_LEASE_S=30")
    if lease_s > LONG_LEASE_S:
        says = (
            f"TANDEMQ_LEASE_S is {lease_s:g}, wanted {LONG_LEASE_S:g} or less: what a lost machine held waits so long"
        )
        return Finding(name, Grade.WARNING, says, "TANDEMQ_LEASE_S=30; leases are renewed, long tasks need no long one")
    return Finding(name, Grade.OK, f"TANDEMQ_LEASE_S is {lease_s:g}")


def _heartbeat(settings: Settings) -> Finding:
    name, beat_s, lease_s = "settings.heartbeat", settings.heartbeat_s, settings.lease_s
    if beat_s * BEATS > lease_s:
        says = f"TANDEMQ_HEARTBEAT_S is {beat_s:g} with TANDEMQ_LEASE_S={lease_s:g}, wanted a third of it or less"
        remedy = f"TANDEMQ_HEARTBEAT_S={lease_s / 6:g}"
        return Finding(name, Grade.WARNING, f"{says}: a late heartbeat may lose every lease", remedy)
    return Finding(name, Grade.OK, f"TANDEMQ_HEARTBEAT_S is {beat_s:g}, {lease_s / beat_s:.0f} to a lease")


def _paces(settings: Settings) -> Iterator[Finding]:
    found = []
    if settings.reconcile_s > LONG_PASS_S:
        says = f"TANDEMQ_RECONCILE_S is {settings.reconcile_s:g}, wanted {LONG_PASS_S:g} or less: what Redis lost"
        found.append(Finding("settings.reconcile", Grade.WARNING, f"{says} waits so long", "TANDEMQ_RECONCILE_S=2"))
    if settings.mover_s > LONG_MOVE_S:
        says = f"TANDEMQ_MOVER_S is {settings.mover_s:g}, wanted {LONG_MOVE_S:g} or less: delayed tasks start so late"
        found.append(Finding("settings.mover", Grade.WARNING, says, "TANDEMQ_MOVER_S=0.2"))
    if settings.unknown_task_s < SHORT_UNKNOWN_S:
        says = f"TANDEMQ_UNKNOWN_TASK_S is {settings.unknown_task_s:g}, wanted {SHORT_UNKNOWN_S:g} or more"
        why = "tasks of a new type are dead before the workers of a rolling deploy know it"
        found.append(Finding("settings.unknown_task", Grade.WARNING, f"{says}: {why}", "TANDEMQ_UNKNOWN_TASK_S=3600"))
    if not settings.grace_s:
        says = "TANDEMQ_GRACE_S is 0, wanted as long as most tasks take: every deploy interrupts what runs"
        found.append(Finding("settings.grace", Grade.WARNING, says, "TANDEMQ_GRACE_S=30"))
    yield from found or [Finding("settings.pace", Grade.OK, "mover, reconciler and grace time are as usual")]


def _limits(settings: Settings, tasks: list[RegisteredTask]) -> Iterator[Finding]:
    if not tasks:
        yield Finding("settings.limits", Grade.INFO, "no tasks are known here, so no time limits", "give -A module:app")
        return
    endless = [task.name for task in tasks if task.timeout_s is None]
    if endless:
        says = f"{_named(endless)} have no time limit (timeout=None), wanted one: a handler that hangs keeps its slot"
        yield Finding("settings.limits", Grade.WARNING, f"{says} for good", "give @app.task(timeout=seconds)")
    once = [t.name for t in tasks if _runs_once(t) and (t.timeout_s is None or t.timeout_s > settings.grace_s)]
    if once:
        says = f"{_named(once)} may run once only (max_retries=0) and longer than TANDEMQ_GRACE_S={settings.grace_s:g}"
        remedy = "raise TANDEMQ_GRACE_S, or lower their timeout"
        yield Finding("settings.grace_once", Grade.WARNING, f"{says}, wanted shorter: a deploy makes them dead", remedy)
    if not endless and not once:
        longest = max(task.timeout_s or 0 for task in tasks)
        says = f"{len(tasks)} tasks have time limits, the longest {longest:g} s: leases are renewed as long as they run"
        yield Finding("settings.limits", Grade.OK, says)


def _runs_once(task: RegisteredTask) -> bool:
    return (task.policy.max_retries if task.max_retries is None else task.max_retries) == 0


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"the tasks {', '.join(sorted(names)[:NAMED])}{more}"
