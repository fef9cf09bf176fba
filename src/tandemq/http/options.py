"""How the API is served."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemq.core.errors import ConfigurationError

#: The longest that a claim may wait for a task to come.
MAX_WAIT_S = 30.0
_RANGES = (
    ("port", 0, 65_535),
    ("workers", 1, 512),
    ("rate", 0, 1_000_000),
    ("max_wait_s", 0, MAX_WAIT_S),
    ("head_s", 0.01, 3600),
    ("silence_s", 0.01, 3600),
    ("idle_s", 0.01, 3600),
    ("grace_s", 0.01, 3600),
    ("max_connections", 0, 1_000_000),
)
_ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Seconds are floats. ``rate``: requests a second that one token may send, 0 for no limit.

    ConfigurationError lists every fault at once.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    #: Processes that share the port.
    workers: int = 1
    rate: float = 0.0
    #: Web pages of these origins may call the API; exact, as a browser writes them.
    cors_origins: tuple[str, ...] = ()
    max_wait_s: float = MAX_WAIT_S
    #: How long the head of a request may take to arrive, and how long a body, or a reader of an answer, may be silent.
    head_s: float = 10.0
    silence_s: float = 20.0
    #: How long a connection may be kept without a request. Longer than the 60 s that proxies keep theirs: it is not to
    #: be closed while a request is on its way.
    idle_s: float = 75.0
    #: How long requests under way may take when the server stops.
    grace_s: float = 20.0
    #: Connections of one process at a time; 0: as many as its file descriptors allow.
    max_connections: int = 0
    #: PEM files; with them the API speaks TLS itself. The key may be in the file of the certificate.
    tls_cert: str = ""
    tls_key: str = ""
    #: One line for every request, at INFO in the logger ``tandemq.http.access``.
    access_log: bool = False

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise ConfigurationError("; ".join(faults))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name may mean anything, but for localhost."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def scheme(self) -> str:
        """``https`` or ``http``."""
        return "https" if self.tls_cert else "http"

    def _faults(self) -> Iterator[str]:
        if not self.host:
            yield "the host must not be empty: 127.0.0.1 is this machine, 0.0.0.0 every network"
        for name, low, high in _RANGES:
            if not low <= getattr(self, name) <= high:
                yield f"{name} must be from {low:g} to {high:g}, not {getattr(self, name):g}"
        yield from map(_fault_of_origin, filter(_fault_of_origin, self.cors_origins))
        if self.tls_key and not self.tls_cert:
            yield "a TLS key without its certificate: give both"
        for path in filter(None, (self.tls_cert, self.tls_key)):
            if not Path(path).is_file():
                yield f"there is no file {path!r} (TLS)"


def _fault_of_origin(origin: str) -> str:
    if origin == "*":
        return "the CORS origin '*' would let every web page call the API: name the origins that may"
    if not _ORIGIN.fullmatch(origin):
        return f"the CORS origin {origin!r} must be as a browser writes it: https://shop.example, or with :port"
    return ""
