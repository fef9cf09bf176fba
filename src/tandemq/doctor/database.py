"""Judges what the database says: whether a committed task is safe, and whether our connections are as they must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tandemq.core.settings import Settings
from tandemq.doctor.finding import Finding, Grade
from tandemq.store.facts import DatabaseFacts

MIN_MYSQL, MIN_MARIADB = (8, 0, 13), (10, 6)
CLOCK_WARNING_S, CLOCK_FAULT_S = 1.0, 30.0
#: What a statement holds beside the text; a text of nothing but quotes travels at twice its size.
PACKET_MARGIN = 64 * 1024
#: Connections that one process of tandemq may open.
POOL = 32
_PROXY = "a proxy in between drops what is set per connection: pin its sessions, or connect to the server directly"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A variable that must have one of certain values; ``variable`` names alternatives, the first that exists counts.

    ``counts``: whether it matters at all, by the other variables.
    """

    name: str
    variable: tuple[str, ...]
    good: tuple[str, ...]
    why: str
    remedy: str
    counts: Callable[[Mapping[str, str]], bool] = lambda _: True
    grade: Grade = Grade.FAULT

    def judge(self, variables: Mapping[str, str] | None) -> Finding | None:
        """None where the server has no such variable."""
        if variables is None:
            return Finding(self.name, Grade.UNKNOWN, f"the server does not tell {self.variable[0]}")
        found = next((v for v in self.variable if v in variables), None)
        if found is None:
            return None
        value = variables[found]
        if not self.counts(variables):
            return Finding(self.name, Grade.OK, f"{found} is {value}, which does not matter here")
        if value.upper() in self.good:
            return Finding(self.name, Grade.OK, f"{found} is {value}")
        return Finding(self.name, self.grade, f"{found} is {value}, wanted {self.good[0]}: {self.why}", self.remedy)


def _logs(variables: Mapping[str, str]) -> bool:
    return variables.get("log_bin", "OFF").upper() in {"ON", "1"}


def _set(name: str, value: object) -> str:
    return f"SET GLOBAL {name} = {value}, and {name}={value} under [mysqld] in the server's configuration"


_OFF = ("OFF", "0")
_DURABILITY = (
    _Rule(
        "database.flush_log",
        ("innodb_flush_log_at_trx_commit",),
        ("1",),
        "a crash loses tasks that were accepted",
        _set("innodb_flush_log_at_trx_commit", 1),
    ),
    _Rule(
        "database.sync_binlog",
        ("sync_binlog",),
        ("1",),
        "with the binary log on, a crash of the machine loses tasks that were accepted",
        _set("sync_binlog", 1),
        _logs,
    ),
)
_SERVER = (
    *_DURABILITY,
    _Rule(
        "database.binlog_format",
        ("binlog_format",),
        ("ROW", "MIXED"),
        "every write of tandemq is refused (it uses READ COMMITTED)",
        _set("binlog_format", "ROW"),
        _logs,
    ),
    _Rule(
        "database.read_only",
        ("read_only",),
        _OFF,
        "nothing can be enqueued or recorded",
        "let TANDEMQ_DATABASE_URL lead to the primary, or SET GLOBAL read_only = 0",
    ),
    _Rule(
        "database.read_only",
        ("super_read_only",),
        _OFF,
        "nothing can be enqueued or recorded",
        "let TANDEMQ_DATABASE_URL lead to the primary, or SET GLOBAL super_read_only = 0",
    ),
    _Rule(
        "database.read_only",
        ("innodb_read_only",),
        _OFF,
        "nothing can be enqueued or recorded",
        "start the server without innodb_read_only",
    ),
)
_SESSION = (
    _Rule(
        "database.isolation",
        ("transaction_isolation", "tx_isolation"),
        ("READ-COMMITTED",),
        "claims wait for each other and may take a task that is gone",
        _PROXY,
    ),
    _Rule("database.autocommit", ("autocommit",), ("ON", "1"), "an enqueued task may never be committed", _PROXY),
    _Rule(
        "database.lock_wait",
        ("innodb_lock_wait_timeout",),
        ("3",),
        "one locked row holds up a whole batch for so long",
        _PROXY,
        grade=Grade.WARNING,
    ),
    _Rule("database.time_zone", ("time_zone",), ("+00:00",), "times are not UTC", _PROXY, grade=Grade.WARNING),
    _Rule(
        "database.connection_charset",
        ("character_set_client",),
        ("UTF8MB4",),
        "texts that are not ASCII are refused or mangled",
        _PROXY,
    ),
    *(
        _Rule(
            "database.stopped_client",
            (variable,),
            (seconds,),
            "a client that is stopped inside a transaction keeps its row locks for so long",
            _PROXY,
            grade=Grade.WARNING,
        )
        for variable, seconds in (("idle_transaction_timeout", "10"), ("wait_timeout", "60"))
    ),
)


def durability(server: Mapping[str, str] | None) -> Iterator[Finding]:
    """Whether what is committed survives a crash."""
    return _judged(_DURABILITY, server)


def judge(facts: DatabaseFacts, settings: Settings) -> Iterator[Finding]:
    """All but the clock."""
    yield _migrations(facts)
    if facts.dialect == "sqlite":
        yield Finding("database.version", Grade.OK, f"SQLite {facts.version}")
        yield _sqlite_safety(facts.session or {})
        return
    yield _version(facts.version)
    yield from _judged(_SERVER, facts.server)
    yield from _judged(_SESSION, facts.session)
    yield from _init_connect(facts.server)
    yield _found_rows(facts)
    if facts.missing is None or len(facts.missing) == 0 or facts.tables:
        yield from _tables(facts)
    yield _packet(facts, settings)
    yield _connections(facts)


def clock(there: datetime, before: datetime, after: datetime) -> Finding:
    """The database's clock against ours, which was read ``before`` and ``after`` it: only what lies outside counts."""
    late, early = (before - there).total_seconds(), (there - after).total_seconds()
    off_s = max(late, early, 0.0)
    way = "behind" if late > early else "ahead of"
    says = f"the database's clock is {off_s:.1f} s {way} this machine's"
    if off_s <= CLOCK_WARNING_S:
        return Finding("database.clock", Grade.OK, "the database's clock agrees with this machine's")
    why = "wanted at most 1 s: due times and leases follow the database's, log lines and delays of callers this one's"
    grade = Grade.FAULT if off_s > CLOCK_FAULT_S else Grade.WARNING
    return Finding("database.clock", grade, f"{says}, {why}", "let both run chrony or ntpd")


def _judged(rules: tuple[_Rule, ...], variables: Mapping[str, str] | None) -> Iterator[Finding]:
    found = [finding for rule in rules if (finding := rule.judge(variables)) is not None]
    for name in dict.fromkeys(f.name for f in found):
        same = [f for f in found if f.name == name]
        yield max(same, key=lambda f: list(Grade).index(f.level))


def _migrations(facts: DatabaseFacts) -> Finding:
    name = "database.migrations"
    if facts.missing is None:
        return Finding(name, Grade.UNKNOWN, "the applied migrations may not be read", "GRANT SELECT on the tables")
    if facts.missing:
        says = f"migrations not applied: {', '.join(facts.missing)}, wanted all of them: nothing can be enqueued"
        return Finding(name, Grade.FAULT, says, "tandemq migrate")
    if facts.unknown:
        says = f"the database has migrations that this version does not know: {', '.join(facts.unknown)}"
        return Finding(name, Grade.WARNING, f"{says}, wanted none", "install the version that made them")
    return Finding(name, Grade.OK, "all migrations are applied")


def _sqlite_safety(session: Mapping[str, str]) -> Finding:
    synchronous = session.get("synchronous", "?")
    if synchronous in {"2", "3"}:
        return Finding("database.flush_log", Grade.OK, f"SQLite synchronous is {synchronous} (FULL)")
    return Finding("database.flush_log", Grade.FAULT, f"SQLite synchronous is {synchronous}, wanted 2 (FULL)")


def _version(text: str) -> Finding:
    numbers = tuple(int(n) for n in re.findall(r"\d+", text)[:3])
    is_mariadb = "mariadb" in text.lower()
    least, product = (MIN_MARIADB, "MariaDB") if is_mariadb else (MIN_MYSQL, "MySQL")
    wanted = f"{product} {'.'.join(map(str, least))} or newer"
    if numbers < least:
        return Finding(
            "database.version", Grade.FAULT, f"the server is {text}, wanted {wanted}", f"upgrade to {wanted}"
        )
    return Finding("database.version", Grade.OK, f"the server is {product} {text}")


def _init_connect(server: Mapping[str, str] | None) -> Iterator[Finding]:
    if server and (text := server.get("init_connect", "").strip()):
        says = f"init_connect of the server is {text[:200]!r}, wanted none: it changes every connection"
        remedy = "SET GLOBAL init_connect = '' unless another program needs it; tandemq sets its own connections right"
        yield Finding("database.init_connect", Grade.INFO, says, remedy)


def _found_rows(facts: DatabaseFacts) -> Finding:
    name = "database.found_rows"
    if facts.finds_rows is None:
        return Finding(name, Grade.UNKNOWN, "an UPDATE could not be tried (see the other findings)")
    if facts.finds_rows:
        return Finding(name, Grade.OK, "an UPDATE answers how many rows it found")
    says = (
        "an UPDATE answers how many rows it changed, wanted how many it found: results are taken for late and refused"
    )
    return Finding(name, Grade.FAULT, says, "a proxy in between drops CLIENT_FOUND_ROWS: switch it on there")


def _tables(facts: DatabaseFacts) -> Iterator[Finding]:
    if facts.tables is None:
        yield Finding("database.engine", Grade.UNKNOWN, "information_schema does not tell the engines")
    else:
        odd = {table: engine for table, engine in facts.tables.items() if engine.lower() != "innodb"}
        for table, engine in sorted(odd.items()):
            says = f"the table {table} is {engine}, wanted InnoDB: it has no transactions and survives no crash"
            yield Finding("database.engine", Grade.FAULT, says, f"ALTER TABLE {table} ENGINE = InnoDB", table)
        if not odd:
            yield Finding("database.engine", Grade.OK, f"all {len(facts.tables)} tables are InnoDB")
    if facts.charsets is None:
        yield Finding("database.charset", Grade.UNKNOWN, "information_schema does not tell the character sets")
    elif facts.charsets:
        table = facts.charsets[0].partition(".")[0]
        says = f"columns are not utf8mb4: {', '.join(facts.charsets[:5])}, wanted utf8mb4 or ascii: emoji are refused"
        remedy = f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        yield Finding("database.charset", Grade.FAULT, says, remedy)
    else:
        yield Finding("database.charset", Grade.OK, "every text column is utf8mb4 or ascii")


def _packet(facts: DatabaseFacts, settings: Settings) -> Finding:
    name, size = "database.packet", (facts.session or {}).get("max_allowed_packet", "")
    if not size.isdigit():
        return Finding(name, Grade.UNKNOWN, "the server does not tell max_allowed_packet")
    most = max(settings.max_payload_bytes, settings.max_result_bytes)
    wanted = 2 * most + PACKET_MARGIN
    if int(size) >= wanted:
        return Finding(name, Grade.OK, f"max_allowed_packet is {size}")
    why = f"wanted {wanted}, twice the largest payload or result ({most}) and a little"
    # The biggest payload that is allowed cannot be stored at all, or only if it holds many quotes.
    grade = Grade.FAULT if int(size) < most + PACKET_MARGIN else Grade.WARNING
    remedy = f"{_set('max_allowed_packet', wanted)}; or lower TANDEMQ_MAX_PAYLOAD_BYTES and TANDEMQ_MAX_RESULT_BYTES"
    return Finding(name, grade, f"max_allowed_packet is {size}, {why}", remedy)


def _connections(facts: DatabaseFacts) -> Finding:
    name, status = "database.connections", facts.status or {}
    most, now = (facts.server or {}).get("max_connections", ""), status.get("threads_connected", "")
    if not most.isdigit() or not now.isdigit():
        return Finding(name, Grade.UNKNOWN, "the server does not tell how many connections it has")
    free, peak = int(most) - int(now), int(status.get("max_used_connections", now))
    says = f"{now} of {most} connections are in use, at most {peak} were"
    if free >= POOL and peak < int(most):
        return Finding(name, Grade.OK, says)
    why = f"wanted {POOL} free, which one process of tandemq may open, and never all in use"
    return Finding(name, Grade.WARNING, f"{says}, {why}", _set("max_connections", 2 * int(most)))
