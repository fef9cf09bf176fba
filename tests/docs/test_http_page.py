"""docs/http.md says what the API does: every exchange in it is made, in order, and every route has one."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tandemq.core.settings import Settings
from tandemq.http.routes import ROUTES
from tests.api import served
from tests.docs.http_page import Exchange, Reader, exchanges
from tests.servers import ROOT

PAGE = (ROOT / "docs" / "http.md").read_text()
#: Too much to be shown in a page, and not JSON, or told of in a sentence: tests of their own look at these.
NOT_SHOWN = {"metrics", "openapi", "show_replay"}


def test_every_exchange_of_the_page_happens_as_it_says(env: Settings) -> None:
    with served(env) as api, api.client() as client:
        # Ids of the page are not those of an empty table: what stands for what must be found out.
        reader = Reader(client)
        client.post("/jobs", json={"type": "earlier"})
        for exchange in exchanges(PAGE):
            reader.act(exchange)


def _is_of(path: str, exchange: Exchange) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", r"\\d+", path), exchange.path.partition("?")[0]))


def test_every_route_is_shown_with_its_answer() -> None:
    made = exchanges(PAGE)

    missing = {
        route.name
        for route in ROUTES
        if not any(route.method == e.method and _is_of(route.path, e) and e.status < 300 for e in made)
    }

    assert missing == NOT_SHOWN
    assert Counter(e.status for e in made).keys() >= {200, 201, 400, 409}
    assert len(made) == PAGE.count("```http")


@pytest.mark.parametrize(
    ("said", "real"),
    [
        ('{"a": 1}', {"a": 2}),
        ('{"a": 1}', {"a": 1, "b": 2}),
        ('{"a": 1, ...}', {"b": 2}),
        ('{"a": 1}', {"a": True}),
        ('{"a": "..."}', {"a": None}),
        ('{"items": [1, ...]}', {"items": []}),
        ('{"items": [1]}', {"items": [1, 2]}),
        ('{"at": "2026-12-01T08:00:00.000000Z"}', {"at": "2026-12-01T08:00:00Z"}),
        ('{"a": {"id": 7}, "b": {"id": 7}}', {"a": {"id": 1}, "b": {"id": 2}}),
    ],
)
def test_another_answer_is_found(said: str, real: object) -> None:
    from tests.docs.http_page import _parsed

    with pytest.raises(AssertionError):
        Reader(None)._compare(_parsed(said), real, "")  # type: ignore[arg-type]
