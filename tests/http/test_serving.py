"""Options that cannot work, ports that cannot be had, TLS, and the end of a server."""

from __future__ import annotations

import errno
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tandemq.core.errors import ConfigurationError
from tandemq.core.settings import Settings
from tandemq.http import ApiOptions, server
from tests.api import app_of, served
from tests.http.wire import request, wire
from tests.waiting import eventually

HALF = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"


def test_every_fault_of_the_options_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as bad:
        ApiOptions(
            host="", port=70_000, workers=0, rate=-1, max_wait_s=31, head_s=0, cors_origins=("*",), tls_key="/none"
        )
    for part in ("host", "port", "workers", "rate", "max_wait_s", "head_s", "'*'", "without its certificate", "/none"):
        assert part in str(bad.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("localhost.example", False), ("127.0.0.1.example", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert ApiOptions(host=host).is_loopback is expected


def test_a_name_is_every_address_that_it_stands_for() -> None:
    listeners = server.listen(ApiOptions(host="localhost", port=0))
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
        for listener in listeners:
            url = server.url_of(ApiOptions(), listener)
            assert url in {f"http://{host}:{listener.getsockname()[1]}" for host in ("127.0.0.1", "[::1]")}
        with pytest.raises(OSError, match="in use"):
            server.listen(ApiOptions(host="127.0.0.1", port=listeners[0].getsockname()[1]))
    finally:
        for listener in listeners:
            listener.close()
    with pytest.raises(socket.gaierror):
        server.listen(ApiOptions(host="no.such.host.invalid", port=0))


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_an_address_that_this_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    found = [
        (family, socket.SOCK_STREAM, 6, "", (host, 0))
        for family, host in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
    ]
    plain = socket.create_server

    def refuses_ipv6(where: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "not here")
        return plain(where, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_server", refuses_ipv6)
    (only,) = server.listen(ApiOptions(host="localhost", port=0))
    with only:
        assert only.family == socket.AF_INET
    found.pop()
    with pytest.raises(OSError, match="not here"):
        server.listen(ApiOptions(host="localhost", port=0))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem",
         "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_it_speaks_tls_itself(env: Settings, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 2.0)
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    with served(env, tls_cert=cert, tls_key=key) as api:
        url = api.url.replace("http:", "https:")
        trust = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=url, verify=trust, trust_env=False, timeout=60) as client:
            answer = client.post("/jobs", json={"type": "a"})
            assert answer.status_code == 201
            assert answer.headers["strict-transport-security"].startswith("max-age=")
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as stranger, pytest.raises(httpx.ConnectError):
            stranger.get("/health/live")
        with wire(api) as line:
            assert line.is_closed(), "somebody who connects and says nothing"
        with wire(api) as line:
            assert b"HTTP/1.1" not in line.send(request("GET /health/live")).rest()


def test_its_connections_are_bounded_whatever_the_end_of_tls(
    env: Settings, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 3.0)
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    trust = ssl.create_default_context(cafile=cert)
    with served(env, tls_cert=cert, tls_key=key, max_connections=5) as api, ExitStack() as held:
        port = int(api.url.rpartition(":")[2])
        for _ in range(15):  # that do not read, and so do not agree on the end
            held.enter_context(wire(api, receive_buffer=2048))
            plain = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            held.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))

        def served_here() -> int:
            found = psutil.Process().net_connections("tcp")
            return sum(one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in found)

        eventually(lambda: served_here() <= 5, 25, served_here)  # without a limit of ours it would be 30 s


def test_certificates_that_cannot_be_used_are_refused_by_name(certificate: Path, tmp_path: Path) -> None:
    cert, broken = str(certificate / "cert.pem"), tmp_path / "broken.pem"
    broken.write_text("no certificate")
    server.check_tls(ApiOptions())
    server.check_tls(ApiOptions(tls_cert=cert, tls_key=str(certificate / "key.pem")))
    for given in (ApiOptions(tls_cert=str(broken)), ApiOptions(tls_cert=cert), ApiOptions(tls_cert=cert, tls_key=cert)):
        with pytest.raises(ConfigurationError, match=r"TLS cannot be served with .*\.pem"):
            server.check_tls(given)


def test_at_the_end_whoever_waits_is_answered_and_what_came_is_stored(env: Settings) -> None:
    app = app_of(env)
    answers: list[httpx.Response] = []
    with served(env, app=app) as api, wire(api) as idle, wire(api) as half:
        idle.send(request("GET /health/live")).answer()

        def claim() -> None:
            with api.client() as client:
                answers.append(client.post("/jobs/claim", json={"worker_id": "w", "queues": ["none"], "wait": 25}))

        waiting = [threading.Thread(target=claim) for _ in range(5)]
        for thread in waiting:
            thread.start()
        half.send(HALF)
        eventually(lambda: len(api.server.server_state.tasks) == 6)
        ended = time.monotonic()
        api.server.should_exit = True
        for thread in waiting:
            thread.join(30)
        claims_s = time.monotonic() - ended
        assert [answer.status_code for answer in answers] == [204] * 5
        assert claims_s < 20, "they would have waited 25 s"
        assert idle.is_closed()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])), timeout=1)
        got = half.send(b'{"type":"a"}').answer()
        assert got.status == 201
        assert half.is_closed()
    with app_of(env) as again:
        assert again.get(got.json["id"]) is not None


def test_what_takes_longer_than_it_may_is_given_up(env: Settings) -> None:
    with served(env, grace_s=1.0) as api, wire(api) as line:
        line.send(HALF)
        eventually(lambda: api.server.server_state.tasks)
        api.server.should_exit = True
        got = line.answer()
        assert (got.status, got.json["type"]) == (503, "urn:tandemq:problem:unknown-outcome")
        assert line.is_closed()
