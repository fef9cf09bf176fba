"""The general log as transactions, each of one kind: enqueue one, enqueue many, claim, finish; and what is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks.traffic.normalise import statements
from benchmarks.traffic.record import Logged

#: Statements that are not part of a batch and that the ceiling does not send. Everything else is compared.
LEFT_OUT = {
    "connection set-up": r"SET (NAMES|AUTOCOMMIT|SESSION|TRANSACTION|@@)|SELECT (VERSION|DATABASE)\(|SHOW |"
    r"SELECT @@(tx_isolation|transaction_isolation|sql_mode|lower_case_table_names|max_allowed_packet|version)",
    "the benchmark itself": r"/\* benchmark \*/|SET GLOBAL|TRUNCATE mysql",
    "migrations, once per process": r"SELECT name FROM tandemq_migrations",
    "the rights of its user, once per worker": r"EXPLAIN ",
    "policies of the queues, now and then": r"SELECT queue, max_retries, policy FROM tandemq_queues",
    "the reconciler's look for open replay runs": r"SELECT .* FROM tandemq_replay_runs\b",
    "pauses, once a second, and the reconciler's look for tasks held by one": r"SELECT .* FROM tandemq_(pauses|held)\b",
    "install id and epoch, once per process": r".* tandemq_meta\b",
    "renewals of leases": r"UPDATE tandemq_claims SET expires_at|SELECT id FROM tandemq_tasks WHERE id IN \(N\.\.\)"
    r" AND cancel_requested_at >",
    "heartbeats": r".* tandemq_workers\b",
    "leadership of mover and reconciler": r".* tandemq_leaders\b|SELECT UTC_TIMESTAMP\(N\)$",
    "the reconciler's surveys": r"SELECT .* FORCE INDEX \(open_rows\)|SELECT .* FROM tandemq_claims WHERE expires_at|"
    r"SELECT .* LEFT JOIN tandemq_claims |SELECT id FROM tandemq_tasks WHERE id > N",
    "the reconciler's look at old counters": r"SELECT .* FROM tandemq_task_counts\b",
}
_LEFT_OUT = re.compile("|".join(f"(?:{pattern})" for pattern in LEFT_OUT.values()))
_FRAME = re.compile(r"(BEGIN|START TRANSACTION|COMMIT|ROLLBACK)$")
#: What a transaction is, by a statement in it; the first that fits.
KINDS = {
    "claim": r"SELECT .*\bpayload\b.* FOR UPDATE SKIP LOCKED$|INSERT INTO tandemq_claims ",
    "finish": r"UPDATE tandemq_tasks .*SET status = 'succeeded'",
    "enqueue many": r"INSERT INTO tandemq_tasks .*, more rows",
    "enqueue one": r"INSERT INTO tandemq_tasks ",
}
OTHER = "other"


@dataclass(slots=True)
class Transaction:
    """Statements between BEGIN (or the first without autocommit) and COMMIT, by packet: one entry of the log is one."""

    packets: dict[int, list[str]] = field(default_factory=dict)

    def add(self, packet: int, statement: str) -> None:
        """One more statement."""
        self.packets.setdefault(packet, []).append(statement)

    @property
    def all(self) -> list[str]:
        """Its statements in order."""
        return [one for packet in self.packets.values() for one in packet]

    @property
    def signature(self) -> tuple[str, ...]:
        """Its packets; statements that came in one are joined by semicolons."""
        return tuple("; ".join(packet) for packet in self.packets.values())

    @property
    def kind(self) -> str:
        """See ``KINDS``; empty if every statement of it is left out."""
        found = [one for one in self.all if not _FRAME.match(one)]
        if all(_LEFT_OUT.match(one) for one in found):
            return ""
        for kind, pattern in KINDS.items():
            if any(re.match(pattern, one) for one in found):
                return kind
        return OTHER


@dataclass(slots=True)
class _Thread:
    """One connection: autocommit is on until it says otherwise."""

    is_autocommit: bool = True
    open: Transaction | None = None


def transactions(log: Iterable[Logged]) -> Iterator[Transaction]:
    """In the order of their ends. What is still open at the end of the log is dropped."""
    threads: dict[int, _Thread] = {}
    for number, entry in enumerate(log):
        if entry.command in {"Connect", "Quit"}:
            threads[entry.thread] = _Thread()
            continue
        if entry.command != "Query":
            continue
        thread = threads.setdefault(entry.thread, _Thread())
        if found := re.match(r"\s*SET AUTOCOMMIT\s*=\s*([01])", entry.text, re.IGNORECASE):
            thread.is_autocommit = found[1] == "1"
            continue
        for statement in statements(entry.text):
            if (ended := _feed(thread, number, statement)) is not None:
                yield ended


def _feed(thread: _Thread, number: int, statement: str) -> Transaction | None:
    begins = statement in {"BEGIN", "START TRANSACTION"}
    if thread.open is None:
        if statement in {"COMMIT", "ROLLBACK"} or statement.startswith("SET "):
            return None  # of nothing: a driver's habit; and SET begins no transaction
        if thread.is_autocommit and not begins:
            alone = Transaction()
            alone.add(number, statement)
            return alone
        thread.open = Transaction()
    thread.open.add(number, statement)
    if statement in {"COMMIT", "ROLLBACK"}:
        ended, thread.open = thread.open, None
        return ended
    return None


def by_kind(log: Iterable[Logged]) -> dict[str, Counter[tuple[str, ...]]]:
    """How often each transaction came, by kind; those left out are not in it."""
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for one in transactions(log):
        if kind := one.kind:
            found.setdefault(kind, Counter())[one.signature] += 1
    return found
