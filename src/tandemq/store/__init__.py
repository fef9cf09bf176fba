"""The truth: tasks, claims and attempts in MySQL, MariaDB or SQLite. The only package that imports SQLAlchemy.

``connect`` gives a Store; what it may be asked for is written down in ``store.protocol``, how the tables look in
``sql/``. SQL text lives in ``statements.py`` (writes) and ``queries.py`` (reads), what differs between servers in
``dialects.py``, what an error means in ``errors.py``; ``database.py`` alone opens, commits and retries.
"""

from __future__ import annotations

from tandemq.core.clock import Clock
from tandemq.core.settings import Settings
from tandemq.store import migrate
from tandemq.store.protocol import Store
from tandemq.store.sql_store import SqlStore

__all__ = ["SqlStore", "Store", "connect"]


def connect(settings: Settings, *, clock: Clock | None = None) -> SqlStore:
    """A store for these settings; connections are opened when first used.

    The embedded default (no URLs) is a SQLite file in the data directory and is migrated here. Anything else is
    migrated by ``tandemq migrate`` alone. A ``clock`` takes the place of the database's own: for tests.
    """
    if settings.is_embedded:
        settings.data_path.mkdir(parents=True, exist_ok=True)
        if migrate.pending(settings):
            migrate.migrate(settings)
    return SqlStore(settings, clock)
