"""What the database says of itself and of its tasks: what ``tandemq doctor`` judges and monitoring shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from tandemq.core.lifecycle import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Texts as the server gives them. None: the server refused to say.

    ``server``: global variables (empty on SQLite); ``session``: those of one of our own connections; ``status``: status
    variables. ``tables``: engine by name, of our tables that exist; ``charsets``: columns of ours whose character set
    is not the one they were made with, as ``table.column (charset)``. ``missing``: migrations that are not applied,
    ``unknown``: applied ones that this code does not have. ``finds_rows``: whether an UPDATE that changes nothing
    answers that it found its row (CLIENT_FOUND_ROWS), tried on a row that nobody writes, and rolled back.
    """

    dialect: str
    version: str
    server: Mapping[str, str] | None = field(default_factory=dict)
    session: Mapping[str, str] | None = field(default_factory=dict)
    status: Mapping[str, str] | None = field(default_factory=dict)
    tables: Mapping[str, str] | None = None
    charsets: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = ()
    unknown: tuple[str, ...] = ()
    finds_rows: bool | None = None


class Entry(NamedTuple):
    """The row behind an id: ``due`` by the database's clock."""

    status: Status
    run_at: datetime
    due: bool


class Diagnosing(Protocol):
    """Reads for ``tandemq doctor``. They raise StoreUnavailable; a question that the server refuses is no error."""

    def server_settings(self) -> Mapping[str, str] | None:
        """The global variables that decide whether what is committed is safe: one round trip. Empty on SQLite."""
        ...

    def database_facts(self) -> DatabaseFacts:
        """All of it, in about seven round trips; works before ``tandemq migrate`` too."""
        ...

    def entries(self, ids: Collection[int]) -> dict[int, Entry]:
        """The committed rows behind ids, by primary key, without locks; ids without a row are left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """How full it is, in one look that reads a bounded number of rows and index entries.

    ``now``: the database's clock. ``queues``: as in ``Inspecting.counts``, with ``capped`` and ``estimated``. ``dead``:
    how many are dead now, at least (``dead_capped``). ``oldest_s``: for how long the oldest ready task of a queue has
    been due, 0 where none is. ``workers`` and ``slots``: of workers heard of within the time asked for, by state.
    ``paused``: queues. ``unled_s``: for how long nobody has led a role (mover, reconciler), 0 while somebody does.
    """

    now: datetime
    queues: Mapping[str, Mapping[str, Any]]
    dead: int
    dead_capped: bool
    oldest_s: Mapping[str, float]
    workers: Mapping[str, int]
    slots: Mapping[str, int]
    paused: frozenset[str]
    unled_s: Mapping[str, float]


class Gauging(Protocol):
    """Reads for monitoring, without locks. They raise StoreUnavailable."""

    def levels_now(self, *, alive_s: float) -> Levels:
        """See ``Levels``; workers count if they were heard of within ``alive_s`` and have not stopped."""
        ...

    def outcomes(self, limit: int) -> list[tuple[str, str, str, int]]:
        """(queue, type, outcome, how many so far) from ``task_counts``, at most ``limit`` of them.

        Never falls. It reads the counters, whose number is bounded by how many types there are, not by tasks.
        """
        ...
