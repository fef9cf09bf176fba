"""Without any token the API is open to its own machine, and to nothing that only comes through it."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.api import ServedApi
from tests.waiting import eventually


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:80", "[::1]:8000"])
def test_this_machine_is_let_in_by_its_own_names(client: httpx.Client, host: str) -> None:
    assert client.get("/stats", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1].evil"]
)
def test_a_page_whose_name_was_made_to_mean_this_machine_is_not(client: httpx.Client, host: str) -> None:
    # A browser sends no Origin with a GET of what it takes for the same site, and one that fits Host with a POST.
    looked = client.get("/stats", headers={"Host": host})
    sent = client.post("/jobs", json={"type": "a"}, headers={"Host": host, "Origin": f"http://{host}"})

    assert {looked.status_code, sent.status_code} <= {400, 401}, (looked.text, sent.text)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
def test_what_came_through_a_proxy_is_not(client: httpx.Client, header: str) -> None:
    assert client.get("/stats", headers={header: "127.0.0.1"}).status_code == 401


def test_nor_is_http_1_0_which_proxies_speak_that_say_nothing(api: ServedApi) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    for version, status in (("1.1", b"200"), ("1.0", b"401")):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"GET /stats HTTP/{version}\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.makefile("rb").readline().split()[1] == status


def test_as_soon_as_there_is_a_token_nobody_is_let_in_without(api: ServedApi, client: httpx.Client) -> None:
    token = api.app.tokens.create("first", ["read"])

    with api.client(token.text) as mine:
        # The gate reads tokens at most every two seconds; one that is known ends the open mode as well.
        eventually(lambda: client.get("/stats").status_code == 401, 30)
        assert mine.get("/stats").status_code == 200
