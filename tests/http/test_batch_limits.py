"""``POST /jobs/batch``: what it does without the database, and what it costs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandemq import EnqueueUnknown
from tandemq.core.settings import Settings
from tandemq.http import batch
from tests.api import ServedApi, served
from tests.http.batches import NDJSON, send, stored, tasks
from tests.scenarios.sizes import size
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import ROOT, environment


def test_without_the_database_the_whole_is_503_and_half_way_the_items_from_there_on_are(
    own_mysql: Callable[..., MySQLServer], settings_for: Callable[..., Settings], redis_url: str, narrow: None
) -> None:
    server = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url)
    texts = [json.dumps(one).encode() + b"\n" for one in tasks(30)]
    with served(settings) as api, api.client() as client:

        def pieces() -> Iterator[bytes]:
            yield from texts[:10]
            eventually(lambda: len(stored(api)) >= 5)
            server.kill9()
            yield from texts[10:]
            yield b"nonsense"

        answer = client.post("/jobs/batch", content=pieces(), headers=NDJSON)
        again = client.post("/jobs/batch", content=b"7\n" + b"".join(texts), headers=NDJSON)
        server.start()
        eventually(lambda: client.post("/jobs", json={"type": "b"}).status_code == 201, 60)
        found = stored(api)
    assert answer.status_code == 200
    answers = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["index"] for one in answers] == list(range(31))
    good = [one for one in answers if one["status"] == 201]
    assert 5 <= len(good) <= 10
    assert answers[: len(good)] == good
    assert {one["problem"]["type"] for one in answers[len(good) : -1]} == {"urn:tandemq:problem:unavailable"}
    assert answers[-1]["status"] == 400
    assert {one["id"] for one in good} <= set(found)
    assert (again.status_code, again.json()["type"]) == (503, "urn:tandemq:problem:unavailable")
    assert int(again.headers["retry-after"]) > 0
    assert len(found) == len(good) + 1


def test_what_may_be_stored_is_said_to_be_unknown_and_nothing_is_tried_after_it(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, narrow: None
) -> None:
    real, calls = api.app.store.insert, []

    def insert(rows: Any, **options: Any) -> Any:
        calls.append(rows)
        if len(calls) == 2:
            raise EnqueueUnknown("the answer to COMMIT was lost")
        return real(rows, **options)

    monkeypatch.setattr(api.app.store, "insert", insert)
    answers = send(client, "lines", tasks(20))
    kinds = [one["problem"]["type"].split(":")[-1] if "problem" in one else "stored" for one in answers]
    first, unknown = len(calls[0]), len(calls[1])
    assert kinds == ["stored"] * first + ["unknown-outcome"] * unknown + ["unavailable"] * (20 - first - unknown)
    assert len(calls) == 2


@pytest.mark.parametrize("form", ["lines", "array"])
def test_too_many_refused_in_a_row_end_the_batch(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, narrow: None, form: str
) -> None:
    monkeypatch.setattr(batch, "BATCH", 10)
    monkeypatch.setattr(batch, "MAX_REFUSED", 20)
    bad: list[Any] = [7] * 19
    answers = send(client, form, [*bad, *tasks(1), *bad, 7, *tasks(200)])
    statuses = [one["status"] for one in answers]
    assert statuses[:40] == [400] * 19 + [201] + [400] * 20
    assert len(answers) == 41 + statuses[40:].count(201)
    assert "too many" in answers[-1]["problem"]["detail"] or statuses.count(201) == 201
    answers = send(client, form, [*bad, 7, 7, *bad, *tasks(200)])
    assert {one["status"] for one in answers} == {400}
    assert 21 <= len(answers) <= 31
    last = answers[-1]["problem"]
    assert "nothing from here on" in last["detail"]
    assert last["byte"] == (len(answers) - 1) * 2 + (form == "array")
    assert len(stored(api)) == statuses.count(201)


def test_answers_have_an_end(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, narrow: None
) -> None:
    monkeypatch.setattr(batch, "MAX_ANSWER_BYTES", 1000)
    *good, last = send(client, "lines", tasks(500))
    assert 10 < len(good) < 100
    assert {one["status"] for one in good} == {201}
    assert (last["status"], last["problem"]["line"]) == (400, len(good) + 1)
    assert sorted(stored(api)) == [one["id"] for one in good]


def test_a_folder_for_answers_that_cannot_be_used_is_found_before_anything_is_stored(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    answer = client.post("/jobs/batch", json=tasks(2))
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:tandemq:problem:internal")
    assert str(tmp_path) not in answer.text
    assert stored(api) == {}


def test_where_answers_cannot_be_kept_nobody_is_told_that_nothing_was_stored(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, narrow: None
) -> None:
    real = batch.Producer.enqueue_each

    def enqueue_each(producer: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))  # the answers go to a file later
        return real(producer, *args, **options)

    monkeypatch.setattr(batch.Producer, "enqueue_each", enqueue_each)
    answer = client.post("/jobs/batch", json=tasks(100))
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unknown-outcome")
    assert "were stored" in answer.json()["detail"]
    assert str(tmp_path) not in answer.text
    assert stored(api)


def test_batches_take_turns_but_for_one_that_is_stuck(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "TURN_S", 60.0)
    real, at_once, most = batch.Producer.enqueue_each, 0, []
    go, held, lock = threading.Event(), threading.Event(), threading.Lock()

    def enqueue_each(producer: Any, news: Any, *args: Any, **options: Any) -> Any:
        nonlocal at_once
        with lock:
            at_once += 1
            most.append(at_once)
        try:
            if any(new.task_type == "stuck" for new in news):
                held.set()
                assert go.wait(60)
            return real(producer, news, *args, **options)
        finally:
            with lock:
                at_once -= 1

    def post(kind: str) -> int:
        with api.client() as client:
            return len(send(client, "lines", [{"type": kind}] * 3000))

    monkeypatch.setattr(batch.Producer, "enqueue_each", enqueue_each)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(post, "abcd")) == [3000] * 4
        assert set(most) == {1}
        monkeypatch.setattr(batch, "TURN_S", 0.1)
        stuck = pool.submit(post, "stuck")
        try:
            assert held.wait(60)
            assert post("a") == 3000
            assert not stuck.done()
        finally:
            go.set()
        assert stuck.result() == 3000
    assert max(most) == 2


#: Of a process that serves: the highest its memory has been since ``clear_refs``, in KiB.
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def test_a_hundred_times_as_many_items_cost_no_more_memory(env: Settings, tmp_path: Path) -> None:
    few, many = 2_000, size(20_000, 200_000)
    log = tmp_path / "api.log"
    command = [sys.executable, "-m", "tandemq", "api", "--port", "0"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, cwd=ROOT, env=environment(env), stdout=out, stderr=out)
    try:
        eventually(lambda: "listening on" in log.read_text() or server.poll() is not None, 60, log.read_text)
        port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", log.read_text())[0])

        def peak_kib(items: int) -> int:
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")
            for media_type in (batch.NDJSON, batch.JSON):
                _send_many(port, media_type, items)
            (kib,) = PEAK.findall(Path(f"/proc/{server.pid}/status").read_text())
            return int(kib)

        peak_kib(few)
        peak_kib(few)  # what is made once has been made
        at_few, at_many = peak_kib(few), peak_kib(many)
        print(f"{few} items: {at_few} KiB, {many}: {at_many} KiB")
        assert at_many - at_few < 8 * 1024
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _send_many(port: int, media_type: str, items: int) -> None:
    """Send them in pieces, and count the answers as they come."""
    opening, between, closing = (b"[", b",", b"]") if media_type == batch.JSON else (b"", b"\n", b"")

    def pieces() -> Iterator[bytes]:
        for begin in range(0, items, 500):
            lines = [
                json.dumps({"type": "a", "payload": {"n": n, "text": "x" * 50}}) for n in range(begin, begin + 500)
            ]
            yield (between if begin else opening) + between.join(line.encode() for line in lines)
        yield closing

    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/jobs/batch", pieces(), {"Content-Type": media_type}, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 200
    created, rest = 0, b""
    while piece := answer.read(65_536):
        created += (rest + piece).count(b'"status":201') - rest.count(b'"status":201')
        rest = piece[-20:]
    connection.close()
    assert created == items
