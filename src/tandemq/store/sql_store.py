"""The store: one class for MySQL, MariaDB and SQLite, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemq.store.diagnosing import DiagnosingStore
from tandemq.store.gauging import GaugingStore
from tandemq.store.handling import HandlingStore
from tandemq.store.inspecting import InspectingStore
from tandemq.store.leasing import LeasingStore
from tandemq.store.letters import LettersStore
from tandemq.store.pausing import PausingStore
from tandemq.store.producing import ProducingStore
from tandemq.store.queues import QueuesStore
from tandemq.store.recording import RecordingStore
from tandemq.store.remote import RemoteStore
from tandemq.store.replaying import ReplayingStore
from tandemq.store.tokens import TokensStore
from tandemq.store.watching import WatchingStore

if TYPE_CHECKING:
    from tandemq.store.protocol import Store


class SqlStore(
    ProducingStore,
    LeasingStore,
    HandlingStore,
    InspectingStore,
    WatchingStore,
    LettersStore,
    ReplayingStore,
    QueuesStore,
    TokensStore,
    RemoteStore,
    PausingStore,
    RecordingStore,
    GaugingStore,
    DiagnosingStore,
):
    """``store.protocol.Store`` on SQL."""


if TYPE_CHECKING:

    def _is_a_store(store: SqlStore) -> Store:
        return store
