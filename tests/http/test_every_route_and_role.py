"""Every route of the table with every kind of token: let in exactly where the table says, and no route is beside it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Route as StarletteRoute

from tandemq import TandemQ
from tandemq.core.settings import Settings
from tandemq.http import api as api_module
from tandemq.http import security
from tandemq.http.routes import ROUTES
from tandemq.http.routing import Role, Route
from tandemq.testing import tandemq_app, tandemq_clock
from tests.api import ServedApi, served

__all__ = ["tandemq_app", "tandemq_clock"]

#: What each route needs, said once more and by hand: the table is not to change unnoticed.
NEEDS = {
    "enqueue": "produce", "enqueue_batch": "produce",
    "claim": "work", "heartbeat": "work", "complete": "work", "fail": "work",
    "list_jobs": "read", "stats": "read", "list_dead": "read", "show_replay": "read", "metrics": "read",
    "show_job": "read produce work", "openapi": "read produce work",
    "cancel_job": "", "replay_job": "", "replay_dead": "",
    "live": None, "ready": None,
}  # fmt: skip
#: Kinds of callers that nobody is to let in.
STRANGERS = ("nothing", "garbage", "unknown", "revoked", "expired", "basic")
STRANGE_PATHS = (
    "//jobs", "/jobs/", "/JOBS", "/./jobs", "/x/../jobs", "/jobs%2f", "/%6a%6f%62%73", "/jobs;a=b", "/jobs/1/",
    "/jobs//1", "/health/live/../../jobs", "/health/live/..%2f..%2fjobs", "/stats%00", "/metrics/", "/dead/replay/",
    "/openapi.json/", "/docs", "/", "/admin", "http://localhost/jobs",
)  # fmt: skip


@pytest.fixture
def api(env: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedApi]:
    # One address fails more often here than one may.
    monkeypatch.setattr(security, "FAILURES", 1_000_000)
    with served(env) as made:
        yield made


@pytest.fixture
def headers(api: ServedApi) -> dict[str, str]:
    """By kind of caller: its Authorization."""
    tokens = api.app.tokens
    texts = {role.value: tokens.create(role.value, [role]).text for role in Role}
    texts["revoked"] = tokens.create("revoked", list(Role)).text
    tokens.revoke("revoked")
    texts["expired"] = tokens.create("expired", list(Role), expires=0.000001).text
    texts["garbage"], texts["unknown"] = "garbage", "tq_0123456789ab_" + "A" * 43
    made = {kind: f"Bearer {text}" for kind, text in texts.items()}
    return {"nothing": "", "basic": made["operate"].replace("Bearer", "Basic"), **made}


def ask(api: ServedApi, method: str, path: str, authorization: str) -> tuple[int, dict[str, str]]:
    """The status and the headers; the path goes out as it is."""
    url = urlsplit(api.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    given = {"Authorization": authorization} if authorization else {}
    try:
        connection.putrequest(method, path)
        for name, value in {**given, "Content-Type": "application/json", "Content-Length": "2"}.items():
            connection.putheader(name, value)
        connection.endheaders(b"{}")
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def wanted(route: Route, kind: str) -> int | None:
    """The refusal, or None for anything else."""
    if route.roles is None:
        return None
    if kind in STRANGERS:
        return 401
    return None if kind in route.roles else 403


def test_every_route_lets_in_whom_the_table_says(api: ServedApi, headers: dict[str, str]) -> None:
    wrong: list[Any] = []
    for route in ROUTES:
        path = route.path.replace("{id}", "123456789")
        methods = [route.method, "HEAD"] if route.method == "GET" else [route.method]
        for method in methods:
            for kind, authorization in headers.items():
                status, given = ask(api, method, path, authorization)
                refusal = wanted(route, kind)
                if (status if status in {401, 403} else None) != refusal or status >= 500:
                    wrong.append((method, path, kind, status, refusal))
                if status == 401 and given.get("www-authenticate") != "Bearer":
                    wrong.append((method, path, kind, given))
    assert wrong == []


def test_other_methods_are_405_for_everybody(api: ServedApi, headers: dict[str, str]) -> None:
    wrong: list[Any] = []
    served_methods: dict[str, set[str]] = {}
    for route in ROUTES:
        # What looks like a path with an id is one: GET /jobs/claim asks for a task that has no number.
        served_methods.setdefault(route.path, set()).update(
            {route.method, "HEAD"} if route.method == "GET" else {route.method}
        )
    for path, methods in served_methods.items():
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} - methods:
            for kind in ("nothing", "operate"):
                status, given = ask(api, method, path.replace("{id}", "123456789"), headers[kind])
                if method == "BREW" and status == 400:
                    continue  # the parser of httptools knows no such word
                if status != 405 or set(given.get("allow", "").split(", ")) != methods:
                    wrong.append((method, path, kind, status, given.get("allow")))
    assert wrong == []


def test_no_way_of_writing_a_path_leads_around_the_gate(api: ServedApi, headers: dict[str, str]) -> None:
    found = {path: ask(api, "GET", path, headers["nothing"])[0] for path in STRANGE_PATHS}
    assert {path: status for path, status in found.items() if not 400 <= status < 500} == {}


def test_the_router_has_the_routes_of_the_table_and_no_others(
    tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Starlette] = []

    class Recorded(Starlette):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(api_module, "Starlette", Recorded)
    api_module.asgi(tandemq_app)
    (application,) = made
    found = []
    for route in application.routes:
        assert isinstance(route, StarletteRoute)  # no mount, no websocket: the gate is in front of none of those
        assert route.methods is not None
        found.append((route.path, tuple(route.methods - {"HEAD"} if "GET" in route.methods else route.methods)))
    assert sorted(found) == sorted((route.path, (route.method,)) for route in ROUTES)
    assert len(set(found)) == len(ROUTES)


def test_the_table_says_who_may_do_what() -> None:
    for route in ROUTES:
        needs = NEEDS[route.name]
        assert route.roles == (None if needs is None else {"operate", *needs.split()}), route.name
    assert {route.name for route in ROUTES} == set(NEEDS)
