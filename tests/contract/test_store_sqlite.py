"""The store contract on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.store_producing import ProducingContract

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate


class TestSqliteStore(ProducingContract):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        settings = Settings(database_url=f"sqlite:///{tmp_path / 'store.db'}", redis_url="redis://nowhere")
        migrate(settings)
        return settings
