"""Fixtures of the integration tests alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tandemq.reconciler.window import Look, Window
from tandemq.testing import FakeClock
from tests.healing import World, open_world

EITHER = [
    pytest.param("fast_world", id="embedded"),
    pytest.param("server_world", id="servers", marks=pytest.mark.servers),
]


@pytest.fixture
def fast_world(settings_for: Callable[..., Settings], tmp_path: Path) -> Iterator[World]:
    """The healers' world over SQLite and a fakeredis in this process; time is in the test's hand."""
    settings = settings_for(f"sqlite:///{tmp_path / 'world.db'}", "redis://localhost:1/0")
    made = open_world(settings, FakeClock(), real=False)
    yield made
    made.close()


@pytest.fixture
def server_world(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Iterator[World]:
    """The same over real servers."""
    made = open_world(settings_for(mysql_url, redis_url), FakeClock(), real=True)
    yield made
    made.close()


@pytest.fixture(params=EITHER)
def world(request: pytest.FixtureRequest) -> World:
    """Once over each."""
    made: World = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the generation heals."""
    monkeypatch.setattr(Window, "look", lambda *_: Look(0, 0, 0))
