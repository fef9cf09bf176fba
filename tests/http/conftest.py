"""Fixtures of the HTTP tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import httpx
import pytest

from tandemq.core.settings import Settings
from tandemq.http import batch
from tests.api import ServedApi, served


@pytest.fixture
def api(env: Settings) -> Iterator[ServedApi]:
    """The API over real servers, open to its own machine (there are no tokens)."""
    with served(env) as made:
        yield made


@pytest.fixture
def client(api: ServedApi) -> Iterator[httpx.Client]:
    """A client of ``api``."""
    with api.client() as made:
        yield made


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On both parsers: h11 serves where httptools is not installed."""
    if request.param == "h11":
        monkeypatch.setitem(sys.modules, "tandemq.http.connections_httptools", None)
    return str(request.param)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are dealt with in small pieces, their answers kept in a file."""
    monkeypatch.setattr(batch, "FEED_BYTES", 200)
    monkeypatch.setattr(batch, "STORE_BYTES", 150)
    monkeypatch.setattr(batch, "IN_MEMORY", 500)
    monkeypatch.setattr(batch, "READ_BYTES", 70)
