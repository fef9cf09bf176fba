"""The ``http`` blocks of docs/http.md: a request, an empty line, and the answer that the page promises.

A block is sent as it stands. Of the answer all that is written must be there: ``...`` stands for more members or items,
a text ``"..."`` for any text. The page's ids, lease tokens and times are examples: the first time that one meets a real
one it stands for that, in paths and bodies of later requests too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

FENCE = re.compile(r"^```http\n(.*?)\n\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
MORE = "..."


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the answer to it; bodies are texts."""

    line: int
    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    answer_headers: dict[str, str]
    answer: str


def exchanges(text: str) -> list[Exchange]:
    """All of a page, in order."""
    found = []
    for match in FENCE.finditer(text):
        first, headers, body = _split(match[1])
        status, answer_headers, answer = _split(match[2])
        method, path = first.split(" ")
        line = text[: match.start()].count("\n") + 1
        found.append(Exchange(line, method, path, headers, body, int(status), answer_headers, answer))
    return found


def _split(part: str) -> tuple[str, dict[str, str], str]:
    first, _, rest = part.partition("\n")
    headers = {}
    while named := re.match(r"([A-Z][A-Za-z-]+): (.*)(?:\n|$)", rest):
        headers[named[1]] = named[2]
        rest = rest[named.end() :]
    return first.strip(), headers, rest.strip()


@dataclass
class Reader:
    """Sends what the page says, and remembers what its examples stand for."""

    client: httpx.Client
    stands_for: dict[str, str] = field(default_factory=dict)

    def act(self, exchange: Exchange) -> None:
        """AssertionError where the answer is another one."""
        headers = {"Content-Type": "application/json"} if exchange.method == "POST" else {}
        path, body = self._known(exchange.path), self._known(exchange.body)
        answer = self.client.request(exchange.method, path, headers=headers | exchange.headers, content=body.encode())
        told = f"line {exchange.line}: {exchange.method} {path} {body}\n{answer.status_code} {answer.text}"
        assert answer.status_code == exchange.status, told
        if exchange.answer_headers.get("Content-Type") == "application/x-ndjson":
            wanted = [_parsed(line) for line in exchange.answer.splitlines()]
            self._compare(wanted, [json.loads(line) for line in answer.text.splitlines()], told)
        elif exchange.answer:
            self._compare(_parsed(exchange.answer), answer.json(), told)
        else:
            assert answer.content == b"", told
        for name, value in exchange.answer_headers.items():
            assert answer.headers[name] == self._known(value), f"{name}: {answer.headers[name]}\n{told}"

    def _known(self, text: str) -> str:
        for said, real in self.stands_for.items():
            text = re.sub(rf"(?<![\w.]){re.escape(said)}(?![\w.])", real, text)
        return text

    def _compare(self, wanted: Any, real: Any, told: str, name: str = "") -> None:
        said = f"{name}: the page says {wanted!r}\n{told}"
        if isinstance(wanted, dict):
            assert isinstance(real, dict), said
            more = wanted.pop(MORE, None)
            assert set(wanted) <= set(real), said
            assert more or set(wanted) == set(real), f"{sorted(set(real) - set(wanted))} are not in the page\n{said}"
            for key, value in wanted.items():
                self._compare(value, real[key], told, key)
        elif isinstance(wanted, list):
            assert isinstance(real, list), said
            more = MORE in wanted
            wanted = [one for one in wanted if one != MORE]
            assert len(real) >= len(wanted) if more else len(real) == len(wanted), said
            for one, other in zip(wanted, real, strict=False):
                self._compare(one, other, told, name)
        elif name in {"id", "id_str", "task_id", "lease_token"}:
            assert type(wanted) is type(real), said
            assert self.stands_for.setdefault(str(wanted), str(real)) == str(real), said
        elif isinstance(wanted, str) and INSTANT.fullmatch(wanted):
            assert INSTANT.fullmatch(real), said
        elif wanted != MORE or not isinstance(real, str):
            assert wanted == real, said
            assert type(wanted) is type(real), said


def _parsed(text: str) -> Any:
    """JSON with ``, ...`` in objects and arrays."""
    text = re.sub(r"(?<=\{)\.\.\.(?=\})", f'"{MORE}": true', text)
    text = re.sub(r"\.\.\.(?=\])", f'"{MORE}"', text)
    return json.loads(re.sub(r", \.\.\.(?=\})", f', "{MORE}": true', text))
