"""The store contract on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate
from tests.contract.store_aging import AgingContract
from tests.contract.store_cancelling import CancellingContract
from tests.contract.store_gauging import GaugingContract
from tests.contract.store_inspecting import InspectingContract
from tests.contract.store_leasing import LeasingContract
from tests.contract.store_letters import LettersContract
from tests.contract.store_pausing import PausingContract
from tests.contract.store_producing import ProducingContract
from tests.contract.store_queues import QueuesContract
from tests.contract.store_replaying import ReplayingContract
from tests.contract.store_searching import SearchingContract
from tests.contract.store_settling import SettlingContract
from tests.contract.store_tokens import TokensContract
from tests.contract.store_transactions import TransactionsContract


class TestSqliteStore(
    ProducingContract,
    LeasingContract,
    SettlingContract,
    InspectingContract,
    LettersContract,
    ReplayingContract,
    SearchingContract,
    TransactionsContract,
    AgingContract,
    QueuesContract,
    TokensContract,
    PausingContract,
    CancellingContract,
    GaugingContract,
):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        settings = Settings(database_url=f"sqlite:///{tmp_path / 'store.db'}", redis_url="redis://nowhere")
        migrate(settings)
        return settings
