"""``POST /jobs/batch``: every item answered in order, whatever the form, whatever is wrong with its neighbours."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tandemq.http import batch
from tests.api import ServedApi
from tests.http.batches import NDJSON, send, stored, tasks
from tests.scenarios.truth import redis_ids
from tests.waiting import eventually

FORMS = pytest.mark.parametrize("form", ["lines", "array"])


@FORMS
def test_every_item_is_stored_and_answered_in_order(api: ServedApi, client: httpx.Client, form: str) -> None:
    answers = send(client, form, tasks(2_345))
    assert [one["status"] for one in answers] == [201] * 2_345
    assert all(one["id_str"] == str(one["id"]) for one in answers)
    found = stored(api)
    assert [found[one["id"]] for one in answers] == list(range(2_345))
    assert sorted(found) == redis_ids(api.app)


@FORMS
def test_a_bad_item_is_refused_by_name_and_takes_nobody_along(api: ServedApi, client: httpx.Client, form: str) -> None:
    key = {"type": "charge", "payload": {"n": "k"}, "idempotency_key": "one"}
    limit = api.app.settings.max_payload_bytes
    items = [
        *tasks(2),
        {"type": "a", "payload": []},
        {"type": "a", "colour": 1},
        key,
        "7",
        key,
        {**key, "payload": {"n": "other"}},
        {"type": "a", "payload": {"text": "x" * limit}},
        {"type": "a", "payload": {"text": "x" * 3 * limit}},
        *tasks(2, queue="mails", priority="high"),
    ]

    answers = send(client, form, items)

    assert [one["status"] for one in answers] == [201, 201, 400, 400, 201, 400, 200, 409, 413, 413, 201, 201]
    problems = {one["index"]: one["problem"] for one in answers if one["status"] > 201}
    assert {index: problem["field"] for index, problem in problems.items()} == {
        2: "payload", 3: "colour", 5: "body", 7: "idempotency_key", 8: "payload", 9: "body",
    }  # fmt: skip
    assert all(problem["status"] == answers[index]["status"] for index, problem in problems.items())
    assert answers[6]["id"] == answers[4]["id"] == problems[7]["task_id"]
    assert str(limit) in problems[8]["detail"]
    assert sorted(map(str, stored(api).values())) == ["0", "0", "1", "1", "k"]


@FORMS
def test_a_batch_sent_again_finds_its_tasks_by_their_keys(api: ServedApi, client: httpx.Client, form: str) -> None:
    items = [one | {"idempotency_key": f"key-{n}"} for n, one in enumerate(tasks(30))]
    first = send(client, form, items[:20])
    again = send(client, form, items)
    assert [one["status"] for one in again] == [200] * 20 + [201] * 10
    assert [one["id"] for one in again[:20]] == [one["id"] for one in first]
    assert len(stored(api)) == 30


@FORMS
def test_nothing_to_store(client: httpx.Client, form: str) -> None:
    assert send(client, form, []) == []
    empty = client.post(
        "/jobs/batch", content=b" \n", headers=NDJSON if form == "lines" else {"Content-Type": batch.JSON}
    )
    assert empty.status_code == (200 if form == "lines" else 400), "no JSON is no array"


@pytest.mark.parametrize(
    ("broken", "says", "byte"),
    [
        ('{"type": "a" "b"}, {"type": "c"}]', "is not JSON", 0),
        ('{"type": "c", "payload": {}}', "ends within", 28),
        ('{"type": "c", "payload": {}}] []', "behind the array", 30),
        (",]", "missing", 0),
        ('{"type": "c}]', "ends within", 13),
    ],
)
def test_a_broken_array_says_where_and_what_came_before_is_stored(
    api: ServedApi, client: httpx.Client, broken: str, says: str, byte: int
) -> None:
    before = "[\n" + "".join(json.dumps(one) + ",\n" for one in tasks(3))
    # More than one piece of the body follows: the client is still sending when it is told.
    rest = " " * 3 * batch.FEED_BYTES
    answer = client.post("/jobs/batch", content=before + broken + rest, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    *good, last = answer.json()["items"]
    complete = says == "behind the array"
    assert [one["status"] for one in good] == [201] * (3 + complete)
    problem = last["problem"]
    assert (last["index"], last["status"], problem["line"]) == (len(good), 400, 5)
    assert says in problem["detail"]
    if not broken.startswith(('{"type": "c", "payload": {}}', '{"type": "c}')) or complete:
        assert problem["byte"] == len(before) + byte
    assert len(stored(api)) == len(good)


def test_an_array_that_is_broken_twice_has_one_last_item(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BATCH", 3)
    body = '[{"type":"a"},{"type":"a"},{"type" "a"},{"type":"b"}}'
    answer = client.post("/jobs/batch", content=body, headers={"Content-Type": "application/json"}).json()
    assert [one["status"] for one in answer["items"]] == [201, 201, 400]
    assert answer["items"][-1]["problem"]["byte"] == body.index('{"type" "a"')
    assert answer["failed"] == 1


def test_a_line_that_is_no_json_is_told_by_its_number_and_the_next_goes_on(
    api: ServedApi, client: httpx.Client
) -> None:
    answers = send(client, "lines", [*tasks(1), "", '{"type": "a" "b"}', *tasks(1)])
    assert [one["status"] for one in answers] == [201, 400, 201]
    assert answers[1]["problem"]["line"] == 3
    assert len(stored(api)) == 2


def test_a_client_that_reads_nothing_before_it_has_sent_all_is_answered_all_the_same(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More answers than all buffers between hold, then an error, then more than they hold in the other direction.
    host, port = api.url.removeprefix("http://").split(":")
    bad = 80_000
    monkeypatch.setattr(batch, "MAX_REFUSED", bad + 1)
    body = b"[" + b"7," * bad + b"}" + b" " * 16_000_000
    head = (
        f"POST /jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        with connection.makefile("rb") as answer:
            text = answer.read()
    last = json.loads(text[text.index(b"\r\n\r\n") :])["items"][-1]
    assert (last["index"], last["problem"]["byte"]) == (bad, 2 * bad + 1)


@pytest.mark.parametrize("body", [b"{}", b"nonsense", b"[}", b'[{"type" 1}]', b"["])
def test_where_no_item_can_be_made_out_the_whole_is_refused(api: ServedApi, client: httpx.Client, body: bytes) -> None:
    answer = client.post("/jobs/batch", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (400, "body")
    assert "line" in answer.json()
    assert stored(api) == {}


def test_other_media_types_and_parameters_are_refused(client: httpx.Client) -> None:
    assert client.post("/jobs/batch", content=b"[]").status_code == 415
    assert client.post("/jobs/batch", content=b"[]", headers={"Content-Type": "text/plain"}).status_code == 415
    answer = client.post("/jobs/batch?atomic=1", content=b"", headers=NDJSON)
    assert (answer.status_code, answer.json()["field"]) == (400, "atomic")


def test_items_are_stored_while_the_body_is_still_on_its_way_and_stay_if_it_breaks(api: ServedApi) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    lines = "".join(json.dumps(one) + "\n" for one in tasks(3_000, queue="q" * 64)).encode()
    head = b"POST /jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + b"Content-Length: 99999999\r\n\r\n" + lines)
        eventually(lambda: len(stored(api)) >= 2_000)
    kept = stored(api)
    # What has begun ends; the rest of what was sent is not stored by anybody later.
    assert set(kept.values()) <= set(range(3_000))
    assert len(set(kept.values())) == len(kept)


@FORMS
def test_small_pieces_make_no_difference(api: ServedApi, client: httpx.Client, form: str, narrow: None) -> None:
    def pieces(body: bytes) -> Iterator[bytes]:
        for at in range(0, len(body), 13):
            yield body[at : at + 13]

    texts = [json.dumps({"type": "a", "payload": {"n": n, "text": 'é"]}\\' * (n % 7)}}) for n in range(40)]
    body = ("\n".join(texts) if form == "lines" else f"[{','.join(texts)}]").encode()
    media_type = batch.NDJSON if form == "lines" else batch.JSON
    answer = client.post("/jobs/batch", content=pieces(body), headers={"Content-Type": media_type})
    answers = answer.json()["items"] if form == "array" else [json.loads(line) for line in answer.text.splitlines()]
    found = stored(api)
    assert [found[one["id"]] for one in answers] == list(range(40))
