"""``/openapi.json``: every route and nothing else, every status, valid, and its values those of the settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis

from tandemq.http import openapi
from tandemq.http.problems import KINDS
from tandemq.http.routes import ROUTES
from tandemq.http.schemas import Limits
from tests.api import ServedApi

LIMITS = Limits(max_payload_bytes=1000, max_result_bytes=2000, max_wait_s=7.5, lease_s=12.0)
WORDS = openapi.described(LIMITS)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As it is served."""
    shape: dict[str, Any] = json.loads(json.dumps(openapi.built(LIMITS), allow_nan=False))
    return shape


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def schemas_of(value: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in the document, with the path to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "schema" or at.endswith("/components/schemas"):
                yield f"{at}/{name}", one
            yield from schemas_of(one, f"{at}/{name}")
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from schemas_of(one, f"{at}/{index}")


def test_every_route_is_described_and_nothing_else(document: dict[str, Any]) -> None:
    assert set(WORDS) == {route.name for route in ROUTES}
    found = {(method, path, operation["operationId"]) for method, path, operation in operations(document)}
    assert found == {(route.method, route.path, route.name) for route in ROUTES}


def test_what_a_route_needs_is_what_the_table_says(document: dict[str, Any]) -> None:
    by_name = {operation["operationId"]: operation for _, _, operation in operations(document)}
    for route in ROUTES:
        operation = by_name[route.name]
        assert operation["security"] == ([] if route.roles is None else [{"bearer": []}]), route.name
        for role in route.roles or ("anybody",):
            assert role in operation["description"].rpartition("\n")[2], route.name
        assert ("403" in operation["responses"]) == (route.roles is not None), route.name


def test_every_status_that_a_problem_has_is_listed(document: dict[str, Any]) -> None:
    own_of_the_router = {405}  # of a method that a path has not: of no operation
    listed = {int(status) for _, _, operation in operations(document) for status in operation["responses"]}
    assert {kind.status for kind in KINDS.values()} - own_of_the_router <= listed
    assert set(document["components"]["responses"]) == {f"Problem{kind.status}" for kind in KINDS.values()}
    for name, response in document["components"]["responses"].items():
        kinds = {f"urn:tandemq:problem:{kind}" for kind, of in KINDS.items() if f"Problem{of.status}" == name}
        (content,) = response["content"].items()
        assert content[0] == "application/problem+json"
        assert set(content[1]["schema"]["properties"]["type"]["enum"]) == kinds


def test_it_is_valid_and_its_references_lead_somewhere(document: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    assert len(list(schema.get_all_operations())) == len(ROUTES)
    found = list(schemas_of(document))
    assert len(found) > 50
    for at, one in found:
        jsonschema_rs.meta.validate(one | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
        references = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(one))
        assert all(reduce(getitem, reference.split("/"), document) for reference in references), at


def test_links_lead_to_operations_and_parameters_that_there_are(document: dict[str, Any]) -> None:
    parameters = {
        operation["operationId"]: {parameter["name"] for parameter in operation.get("parameters", ())}
        for _, _, operation in operations(document)
    }
    links = [
        link
        for _, _, operation in operations(document)
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert {"heartbeat", "complete", "fail", "show_job", "replay_job"} <= {link["operationId"] for link in links}
    for link in links:
        assert set(link["parameters"]) == parameters[link["operationId"]], link


def test_examples_are_examples(document: dict[str, Any]) -> None:
    count = 0
    for _, _, operation in operations(document):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            validator = jsonschema_rs.Draft202012Validator(
                {**content["schema"], "components": document["components"]}, validate_formats=True
            )
            for example in content.get("examples", {}).values():
                validator.validate(example["value"])
                count += 1
    assert count >= 12


def body_validator(document: dict[str, Any], path: str) -> jsonschema_rs.Draft202012Validator:
    """What the document says about the JSON body of a POST."""
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}, validate_formats=True)


#: (path, body, whether it is accepted)
BODIES: list[tuple[str, dict[str, Any], bool]] = [
    ("/jobs", {"type": "t", "delay": None, "run_at": "2040-01-01T00:00:00Z"}, True),
    ("/jobs", {"type": "t", "delay": 1, "run_at": "2040-01-01T00:00:00Z"}, False),
    ("/jobs", {"type": "t", "run_at": "2040-01-01T00:00:00"}, False),
    ("/jobs", {"type": "t", "run_at": "2040-01-01 00:00:00Z"}, False),
    ("/jobs", {"type": "t", "run_at": "2040-02-30T00:00:00Z"}, False),
    ("/jobs", {"type": "t", "run_at": "0000-01-01T00:00:00Z"}, False),
    ("/jobs", {"type": "t", "run_at": "0300-01-01T00:00:00Z"}, True),
    ("/jobs", {"type": "t", "run_at": "9999-12-29T23:59:59.999999Z"}, True),
    ("/jobs", {"type": "t", "run_at": "9999-12-29T23:59:59-01:00"}, False),
    ("/jobs", {"type": "t", "run_at": "9999-12-30T00:00:00Z"}, False),
    ("/jobs", {"type": "t", "run_at": "2016-12-31T23:59:60Z"}, False),
    ("/jobs", {"type": "t", "priority": 5.0}, True),
    ("/jobs", {"type": "t", "priority": 5.5}, False),
    ("/jobs", {"type": "t", "priority": "urgent"}, False),
    ("/jobs", {"type": "t", "max_retries": 3.0}, True),
    ("/jobs", {"type": "t", "max_retries": "3"}, False),
    ("/jobs", {"type": "t", "max_retries": 1_000_001}, False),
    ("/jobs", {"type": "t", "delay": 250_000_000_000}, True),
    ("/jobs", {"type": "t", "delay": 250_000_000_001}, False),
    ("/jobs", {"type": "t", "expires": 0.0005}, False),
    ("/jobs", {"type": "t", "expires": 0}, False),
    ("/jobs", {"type": "t", "payload": None}, False),
    ("/jobs", {"type": "t\n"}, False),
    ("/jobs", {"type": "t", "idempotency_key": ""}, False),
    ("/jobs", {"type": "t", "color": 1}, False),
    ("/dead/replay", {"ids": ["9223372036854775807", 9223372036854775807, 5.0]}, True),
    ("/dead/replay", {"ids": ["9223372036854775808"]}, False),
    ("/dead/replay", {"ids": ["1\n"]}, False),
    ("/dead/replay", {"ids": [0]}, False),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "rate": "0.5/s"}, False),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "rate": "1.5/min", "canary": "0.5%"}, True),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "canary": "0.0%"}, False),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "canary": "100.1%"}, False),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "stop_if_failing": "0%"}, True),
    ("/dead/replay", {"filter": {"state": "cancelled"}, "rate": "10/s\n"}, False),
]


def test_the_document_and_the_checks_agree(client: httpx.Client, document: dict[str, Any]) -> None:
    for path, body, is_accepted in BODIES:
        assert body_validator(document, path).is_valid(body) == is_accepted, ("document", path, body)
        answer = client.post(path, json=body)
        assert (answer.status_code < 300) == is_accepted, ("checks", path, body, answer.text)
        assert is_accepted or answer.status_code == 400, answer.text


def test_its_values_are_those_of_the_installation(client: httpx.Client, api: ServedApi) -> None:
    answer = client.get("/openapi.json")

    settings = api.app.settings
    wanted = Limits(settings.max_payload_bytes, settings.max_result_bytes, 30.0, settings.lease_s)
    assert answer.json() == openapi.built(wanted)
    body = answer.json()["paths"]["/jobs/claim"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["wait"]["maximum"] == 30.0
    assert str(settings.max_payload_bytes) in json.dumps(answer.json()["components"]["schemas"]["NewTask"])
    assert client.get("/openapi.json?x=1").json()["field"] == "x"
