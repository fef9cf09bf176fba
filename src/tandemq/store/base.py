"""What every part of the store stands on."""

from __future__ import annotations

from tandemq.core.clock import Clock
from tandemq.core.settings import Settings
from tandemq.store.database import Database
from tandemq.store.queries import Queries
from tandemq.store.settling import Settler
from tandemq.store.statements import Statements

#: Width of ``worker_id``. Longer ids keep their end, where the random part is.
MAX_HOLDER = 48


def holder(worker_id: str) -> str:
    """A worker id as it is stored and compared."""
    return worker_id[-MAX_HOLDER:].strip()


class StoreBase:
    """Database, statements and settings, made once."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.db = Database(settings, clock)
        self.sql = Statements(self.db.dialect, settings.table_prefix)
        self.queries = Queries(self.db.dialect, settings.table_prefix)
        self.settler = Settler(self.sql, self.queries)

    def close(self) -> None:
        """Drop all connections."""
        self.db.close()
