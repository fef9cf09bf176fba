"""examples/http: producers and workers in shell and JavaScript, as their first lines say, against the real API."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq import NewTask
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.store.answers import Filter
from tests.api import ServedApi, served
from tests.foreign import EXAMPLES, Foreign, program, said_by, worker
from tests.servers import free_port
from tests.waiting import eventually

COUNT = "import json, sys; text = json.load(sys.stdin)['text']; print(json.dumps({'words': len(text.split())}))"


@pytest.fixture
def api(env: Settings) -> Iterator[ServedApi]:
    with served(env) as made:
        yield made


@pytest.fixture
def shell_worker(api: ServedApi, tmp_path: Path) -> Iterator[Callable[..., Foreign]]:
    """``shell_worker(TYPE, PROGRAM, ...)`` starts worker.sh."""
    program("curl")
    running = []

    def start(*arguments: str, **environ: str) -> Foreign:
        log = tmp_path / f"shell{len(running)}.log"
        context = worker(log, "sh", "worker.sh", *arguments, url=api.url, TMPDIR=str(tmp_path), **environ)
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


def _ended(api: ServedApi, task_id: int, script: Foreign) -> dict[str, object]:
    def look() -> bool:
        return api.app.get(task_id).status in {Status.SUCCEEDED, Status.DEAD, Status.CANCELLED}

    eventually(look, 60, script.text)
    return dict(api.app.get(task_id).to_json())


PRODUCERS = [("sh", "producer.sh"), (None, "producer.mjs")]


@pytest.fixture(params=PRODUCERS, ids=[name for _, name in PRODUCERS])
def producer(request: pytest.FixtureRequest) -> tuple[str, ...]:
    shell, name = request.param
    if shell:
        program("curl")
        return shell, name
    return program("node"), name


def test_a_producer_stores_a_task_once_under_its_key(api: ServedApi, producer: tuple[str, ...]) -> None:
    order = ("mail.send", '{"to": "Zoë", "n": 1}', "order-7")

    first = said_by(*producer, *order, url=api.url)
    again = said_by(*producer, *order, url=api.url)
    without_key = [said_by(*producer, "mail.send", url=api.url) for _ in range(2)]

    tasks = sorted(api.app.admin.find(Filter()).items, key=lambda task: task.id)
    assert [task.idempotency_key == "order-7" for task in tasks] == [True, False, False]
    assert json.loads(tasks[0].payload) == {"to": "Zoë", "n": 1}
    assert all(task.idempotency_key for task in tasks)  # made up, so that it can be sent again
    ids = [str(task.id) for task in tasks]
    for said, task_id in zip([first, again, *without_key], [ids[0], *ids], strict=True):
        assert task_id in said.replace(",", " ").replace(":", " ").split()


def test_a_producer_says_what_was_refused(api: ServedApi, producer: tuple[str, ...]) -> None:
    said = said_by(*producer, "no type", "{}", url=api.url, code=1)

    assert "type" in said
    assert "A-Z a-z 0-9" in said
    assert api.app.admin.find(Filter()).items == ()


def test_a_producer_waits_for_an_api_that_comes_later(env: Settings, producer: tuple[str, ...], tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with worker(tmp_path / "log", *producer, "mail.send", '{"n": 5}', url=url) as running:
        with socket.create_server(("127.0.0.1", port)) as nobody, nobody.accept()[0] as caller:
            assert caller.recv(1)  # and then it is hung up on
        with served(env, port=port) as api:
            assert running.wait() == 0, running.text()
            assert [json.loads(task.payload) for task in api.app.admin.find(Filter()).items] == [{"n": 5}]


def test_the_shell_producer_takes_no_quotes_for_json(api: ServedApi) -> None:
    program("curl")

    said_by("sh", "producer.sh", 'a", "queue": "b', url=api.url, code=2)

    assert api.app.admin.find(Filter()).items == ()


def test_the_shell_worker_runs_a_program_for_each_task(api: ServedApi, shell_worker: Callable[..., Foreign]) -> None:
    script = shell_worker("text.count", "python3", "-c", COUNT)
    ids = [h.id for h in api.app.enqueue_many([NewTask("text.count", {"text": "ä " * n}) for n in range(1, 4)])]

    results = [_ended(api, task_id, script)["result"] for task_id in ids]

    assert results == [{"words": 1}, {"words": 2}, {"words": 3}]
    assert script.stop() == 0, script.text()
    assert not list(script.log.parent.glob("tmp.*")), "it leaves its folder behind"


def test_the_shell_worker_fails_as_the_exit_code_says(api: ServedApi, shell_worker: Callable[..., Foreign]) -> None:
    script = shell_worker("bad", "sh", "-c", 'read -r line; echo "cannot: $line" >&2; exit 65')
    (never,) = [h.id for h in api.app.enqueue_many([NewTask("bad", {"n": 1})])]

    dead = _ended(api, never, script)
    assert (dead["dead_reason"], dead["error_type"]) == ("non_retryable", "exit 65")
    assert dead["error"] == 'cannot: {"n": 1}'

    assert script.stop() == 0, script.text()  # it would put off what it does not know
    other = shell_worker("worse", "sh", "-c", "exit 3")
    (later,) = [h.id for h in api.app.enqueue_many([NewTask("worse", {})])]
    eventually(lambda: api.app.admin.show(later).state == "retrying", 60, other.text)
    assert api.app.admin.show(later).last_error == "no reason given"


def test_the_shell_worker_keeps_its_lease_and_finishes_when_told_to_stop(
    api: ServedApi, shell_worker: Callable[..., Foreign], tmp_path: Path
) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done"
    script = shell_worker("hold", "sh", "-c", wait, LEASE_S="3")
    (task_id,) = [h.id for h in api.app.enqueue_many([NewTask("hold", {})])]
    eventually(lambda: api.app.get(task_id).status is Status.RUNNING, 60, script.text)
    begun = api.app.get(task_id).lease_expires_at

    eventually(lambda: api.app.get(task_id).lease_expires_at > begun, 60, script.text)
    script.process.terminate()
    (tmp_path / "go").touch()

    assert script.wait() == 0, script.text()
    task = api.app.get(task_id)
    assert (task.status, json.loads(task.result), task.attempts) == (Status.SUCCEEDED, "done", 1)


def test_the_shell_worker_stops_a_program_whose_task_was_cancelled(
    api: ServedApi, shell_worker: Callable[..., Foreign]
) -> None:
    script = shell_worker("hold", "sleep", "600", LEASE_S="3")
    (task_id,) = [h.id for h in api.app.enqueue_many([NewTask("hold", {})])]
    eventually(lambda: api.app.get(task_id).status is Status.RUNNING, 60, script.text)

    assert api.app.cancel(task_id) == "requested"

    assert _ended(api, task_id, script)["status"] == "cancelled"


def test_no_token_is_seen_among_the_arguments(api: ServedApi, tmp_path: Path) -> None:
    program("curl")
    spy = tmp_path / "bin"
    spy.mkdir()
    (spy / "curl").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/arguments\nexec {program("curl")} "$@"\n')
    (spy / "curl").chmod(0o755)
    path = f"{spy}:/usr/local/bin:/usr/bin:/bin"
    token = "tq_000000000000_" + "x" * 43

    said_by("sh", "producer.sh", "a", url=api.url, PATH=path, TANDEMQ_API_TOKEN=token)
    with worker(
        tmp_path / "log", "sh", "worker.sh", "a", "true", url=api.url, PATH=path, TANDEMQ_API_TOKEN=token
    ) as script:
        eventually(lambda: api.app.admin.find(Filter()).items[0].status is Status.SUCCEEDED, 60, script.text)

    arguments = (tmp_path / "arguments").read_text()
    assert "/jobs/claim" in arguments
    assert token not in arguments


def test_the_files_are_programs() -> None:
    for name in ("producer.sh", "worker.sh"):
        path = EXAMPLES / name
        assert path.stat().st_mode & 0o111
        assert path.read_text().startswith("#!/bin/sh\n")
