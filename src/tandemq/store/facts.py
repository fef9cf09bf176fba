"""What the database says of itself, and of ids that lie in Redis: the values that ``tandemq doctor`` judges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

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
