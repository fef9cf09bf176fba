"""Claims over HTTP obey what operators have paused, and a waiting one goes on when the pause ends."""

from __future__ import annotations

import threading
import time

import httpx
import psutil

from tandemq.pausing import OBEYED_S
from tests.api import ServedApi
from tests.weather import Weather


def claim(client: httpx.Client, wait: float = 0.0, **more: object) -> list[dict[str, object]]:
    answer = client.post("/jobs/claim", json={"worker_id": "w", "wait": wait} | more)
    assert answer.status_code in {200, 204}, answer.text
    return answer.json()["jobs"] if answer.status_code == 200 else []


def test_nothing_of_a_paused_queue_is_claimed(client: httpx.Client, api: ServedApi, weather: Weather) -> None:
    api.app.pauses.pause("mail")
    time.sleep(OBEYED_S + weather.slack_s)  # the promise itself
    task_id = client.post("/jobs", json={"type": "a", "queue": "mail"}).json()["id"]
    other = client.post("/jobs", json={"type": "a"}).json()["id"]
    process = psutil.Process()
    before = process.cpu_times().user + process.cpu_times().system
    assert claim(client, 1.5, queues=["mail"]) == []
    assert process.cpu_times().user + process.cpu_times().system - before < 1.0, "it turns in circles"
    assert [job["id"] for job in claim(client, queues=["mail", "default"])] == [other]

    found: list[dict[str, object]] = []
    waiting = threading.Thread(target=lambda: found.extend(claim(client, 20.0, queues=["mail"])))
    waiting.start()
    api.app.pauses.resume("mail")
    waiting.join(40)
    assert [job["id"] for job in found] == [task_id]


def test_tasks_of_a_paused_type_are_held(client: httpx.Client, api: ServedApi, weather: Weather) -> None:
    api.app.pauses.pause(task_type="a")
    time.sleep(OBEYED_S + weather.slack_s)
    held = client.post("/jobs", json={"type": "a"}).json()["id"]
    other = client.post("/jobs", json={"type": "b"}).json()["id"]
    assert [job["id"] for job in claim(client, 5.0)] == [other]
    assert client.get(f"/jobs/{held}").json()["state"] == "scheduled"
    assert client.get("/stats").json()["paused"][0]["name"] == "a"
    api.app.pauses.resume(task_type="a")
    (job,) = claim(client, 20.0)
    assert (job["id"], job["attempts"]) == (held, 1)
