"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tandemq.core.settings import Settings
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
