"""The store contract on MariaDB or MySQL."""

from __future__ import annotations

import pytest

from tandemq.core.settings import Settings
from tests import recipes
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


class TestMySqlStore(
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
    def settings(self, mysql_url: str) -> Settings:
        return recipes.prepared(Settings(database_url=mysql_url, redis_url="redis://nowhere"))
