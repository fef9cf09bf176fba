"""Every field of every route, given what nobody should send: 4xx that names it, or accepted; never 5xx, never a leak.

And what is refused leaves every table as it was. The fields are those of the OpenAPI document, so that none is missed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemq.core.settings import Settings
from tandemq.http.routes import ROUTES
from tests.api import ServedApi
from tests.http.fuzz.hostile import BODIES, IDS, QUERY_VALUES, VALUES
from tests.http.fuzz.running import with_tasks
from tests.scenarios.sizes import size

JSON = {"Content-Type": "application/json"}
#: What an answer must not have, in lower case. No value that is sent has any of it.
LEAKS = ("select ", "insert into", "traceback (most", "/work", "site-packages", "pymysql", "mysqldb", "sqlalchemy",
         ".py", "errno", "0x7f")  # fmt: skip
#: Bodies to which one field is added: complete but for that field.
LEAST: dict[str, dict[str, Any]] = {
    "enqueue": {"type": "t"},
    "claim": {"worker_id": "w", "queues": ["nothing-here"]},
    "heartbeat": {"lease_token": "0123456789abcdef-30"},
    "complete": {"lease_token": "0123456789abcdef-30"},
    "fail": {"lease_token": "0123456789abcdef-30"},
    "replay_dead": {"ids": [999_999]},
}
#: Of all pairs of a field and a value; each value comes to every third field.
EVERY = size(3, 1)
assert len(VALUES) % EVERY or EVERY == 1, "each field would get the same third of the values"
POSTS = [route for route in ROUTES if route.method == "POST"]
GETS = [route for route in ROUTES if route.method == "GET"]


class Bed(NamedTuple):
    """The API, a client, and a connection to look at the tables with."""

    api: ServedApi
    client: httpx.Client
    tables: sa.Connection
    names: str

    def checksums(self) -> list[tuple[Any, ...]]:
        """Of every table."""
        return [tuple(row) for row in self.tables.exec_driver_sql(f"CHECKSUM TABLE {self.names}")]


@pytest.fixture
def bed(api: ServedApi, client: httpx.Client, env: Settings) -> Iterator[Bed]:
    """With tasks in every state."""
    with_tasks(api.app)
    engine = sa.create_engine(env.database_url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
        yield Bed(api, client, connection, ", ".join(f"`{row[0]}`" for row in rows))


class Watch:
    """Judges answers, and that refused requests change nothing."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._was = bed.checksums()
        self.refused = self.accepted = 0

    def judge(self, answer: httpx.Response, what: str, *culprits: str) -> None:
        """``culprits``: a 400 names one of these, or a part of it; none: it need not."""
        what = f"{what[:200]} -> {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, what
        told = answer.text.lower() + str(answer.headers).lower()
        assert not [leak for leak in LEAKS if leak in told], what
        assert "x-injected" not in answer.headers, what
        now = self._bed.checksums()
        if answer.status_code >= 400:
            self.refused += 1
            assert answer.headers["content-type"] == "application/problem+json", what
            assert now == self._was, f"changed the tables: {what}"
            field = answer.json().get("field", "")
            named = any(field == name or field.startswith((f"{name}.", f"{name}[")) for name in culprits)
            assert named or not culprits or answer.status_code != 400, f"names {field!r}: {what}"
            assert len(answer.content) < 3000, what
        else:
            self.accepted += 1
        self._was = now


def fields_of(document: dict[str, Any], path: str) -> list[str]:
    """The fields of a body; those of the filter of a replay with a dot."""
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    names = []
    for name, one in schema.get("properties", {}).items():
        names.append(name)
        names += [f"{name}.{inner}" for inner in one.get("properties", {})]
    return names


def body_with(route: str, field: str, value: str) -> str:
    """The least body of a route with one more field, whose value is any text; as it is sent."""
    least = dict(LEAST.get(route, {}))
    name, _, inner = field.partition(".")
    if name in {"ids", "filter"}:
        least = {}
    least.pop(name, None)
    value = f'{{"{inner}":{value}}}' if inner else value
    members = [f"{json.dumps(key)}:{json.dumps(one)}" for key, one in least.items()]
    return "{" + ",".join([*members, f'"{name}":{value}']) + "}"


def path_of(path: str, known: int = 1) -> str:
    """With an id of a task that there is."""
    return path.replace("{id}", str(known))


def send(bed: Bed, route: Any, field: str, value: str) -> httpx.Response:
    """One field with one value."""
    body = body_with(route.name, field, value).encode(errors="surrogatepass")
    return bed.client.post(path_of(route.path), content=body, headers=JSON)


def test_every_field_of_every_body(bed: Bed) -> None:
    document = bed.client.get("/openapi.json").json()
    watch, count = Watch(bed), 0
    for route in POSTS:
        fields = fields_of(document, route.path)
        assert fields or route.name == "enqueue_batch", route.name
        for at, (field, value) in enumerate(itertools.product(fields, VALUES)):
            if at % EVERY:
                continue
            # Two fields that depend on each other may both be blamed.
            others = {"ids": ("filter",), "lease_token": ("worker_id",)}.get(field, ())
            watch.judge(send(bed, route, field, value), f"{route.name}.{field} = {value}", field, "body", *others)
            count += 1
    assert count * EVERY > 45 * len(VALUES), "the document has fewer fields than there are"
    assert watch.refused > 5 * watch.accepted > 0, (watch.refused, watch.accepted)


def test_every_body_as_a_whole(bed: Bed) -> None:
    watch = Watch(bed)
    for route, body in itertools.product(POSTS, BODIES):
        answer = bed.client.post(path_of(route.path), content=body, headers=JSON)
        watch.judge(answer, f"{route.name} {body[:80]!r}")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = bed.client.post(path_of(route.path), content=body, headers={"Content-Type": kind})
            assert answer.status_code == 415, (route.name, kind, answer.text)
    assert watch.refused > 10 * watch.accepted, (watch.refused, watch.accepted)


def test_every_item_of_a_batch(bed: Bed) -> None:
    """Each is answered for itself: with 200 around it, and the table as it was where none is stored."""
    names = fields_of(bed.client.get("/openapi.json").json(), "/jobs")
    for field in names:
        items = [body_with("enqueue", field, value) for value in VALUES]
        lines = [item for item in items if "\n" not in item]
        before = bed.checksums()
        answer = bed.client.post(
            "/jobs/batch", content="\n".join(lines).encode(errors="surrogatepass"),
            headers={"Content-Type": "application/x-ndjson"},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text[:500]
        answers = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["index"] for one in answers] == list(range(len(lines)))
        assert {one["status"] for one in answers} <= {200, 201, 400, 409, 413}, field
        assert any(one["status"] == 400 for one in answers), field
        for one, line in zip(answers, lines, strict=True):
            assert not [leak for leak in LEAKS if leak in json.dumps(one).lower()], (line[:200], one)
            if one["status"] == 400:
                named = one["problem"]["field"]
                assert named.startswith((field, "body")), (line[:200], one)
        assert (bed.checksums() == before) == (not any(one["status"] == 201 for one in answers)), field


def test_every_parameter_of_every_query(bed: Bed) -> None:
    document = bed.client.get("/openapi.json").json()
    watch = Watch(bed)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
        for name, value in itertools.product([*names, "unknown", "%00", "%ff", "a%5Bb%5D"], QUERY_VALUES):
            if route.method == "POST" and value != "1":
                continue
            target = f"{path_of(route.path)}?{name}={value}"
            how: dict[str, Any] = {"content": b"{}", "headers": JSON} if route.method == "POST" else {}
            answer = bed.client.request(route.method, target, **how)
            watch.judge(answer, f"{route.method} {target}", *((name, "query") if name in names else ()))
            assert name in names or answer.status_code == 400, (target, answer.text)
    assert watch.refused > 2 * watch.accepted > 0, (watch.refused, watch.accepted)


def test_every_id_of_every_path(bed: Bed) -> None:
    watch = Watch(bed)
    for route, one in itertools.product([route for route in ROUTES if "{id}" in route.path], IDS):
        body = LEAST.get(route.name, {})
        how: dict[str, Any] = {"content": json.dumps(body), "headers": JSON} if route.method == "POST" else {}
        request = bed.client.build_request(route.method, "/", **how)
        request.url = request.url.copy_with(raw_path=route.path.replace("{id}", one).encode())
        answer = bed.client.send(request)
        watch.judge(answer, f"{route.method} {route.path} {one}")
        assert answer.status_code in {400, 404, 405}, (route.path, one, answer.status_code)


def test_values_that_nobody_thought_of(bed: Bed) -> None:
    document = bed.client.get("/openapi.json").json()
    watch = Watch(bed)
    fields = [(route, field) for route in POSTS for field in fields_of(document, route.path)]
    texts = st.text(max_size=300) | st.characters(categories=["Cs", "Cc", "Cf"])
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=12,
    )

    @settings(
        max_examples=size(300, 5000), deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.sampled_from(fields), values)
    def try_one(chosen: Any, value: Any) -> None:
        route, field = chosen
        text = json.dumps(value)
        watch.judge(send(bed, route, field, text), f"{route.name}.{field} = {text}", field, "body", "filter")

    try_one()
    assert watch.refused > watch.accepted
