"""``/health/live``, ``/health/ready`` and ``/metrics``: true, bounded in time, and one question for all who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandemq import metrics
from tandemq.core.settings import Settings
from tandemq.http import health
from tests.api import ServedApi, served
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.weather import Weather

FINE = {"status": "ok", "database": "ok", "redis": "ok"}


def ready(client: httpx.Client) -> tuple[int, dict[str, str]]:
    answer = client.get("/health/ready")
    assert (answer.status_code == 503) == ("retry-after" in answer.headers)
    return answer.status_code, answer.json()


def test_all_is_well(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"status": "ok"}
    assert ready(client) == (200, FINE)
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert client.get(f"{path}?verbose=1").status_code == 400


def test_each_server_that_is_away_is_named_and_found_again(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], own_redis: Callable[..., RedisServer]
) -> None:
    mysql, redis = own_mysql(), own_redis()
    settings = settings_for(mysql.url(name := mysql.create_database()), redis.url())
    with served(settings) as api, api.client() as client:
        assert ready(client) == (200, FINE)

        redis.stop()
        eventually(lambda: ready(client) == (200, FINE | {"redis": "away"}))
        assert client.post("/jobs", json={"type": "a"}).status_code == 201, "which is why it is ready"
        redis.start()
        eventually(lambda: ready(client) == (200, FINE))

        mysql.stop()
        eventually(lambda: ready(client) == (503, FINE | {"status": "unavailable", "database": "away"}))
        assert client.get("/health/live").status_code == 200, "a restart would not help"
        mysql.start()
        eventually(lambda: ready(client) == (200, FINE))

        mysql.sql("RENAME TABLE tandemq_migrations TO away", database=name)
        eventually(lambda: ready(client)[0] == 503)
        mysql.sql("RENAME TABLE away TO tandemq_migrations", database=name)
        eventually(lambda: ready(client) == (200, FINE))


def test_a_server_that_hangs_is_away_after_two_seconds(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], redis_url: str, weather: Weather
) -> None:
    mysql = own_mysql()
    settings = settings_for(mysql.url(mysql.create_database()), redis_url)
    with served(settings) as api, api.client() as client:
        assert ready(client) == (200, FINE)
        eventually(lambda: time.sleep(health.FRESH_S) is None)
        mysql.sigstop()
        try:
            asked = time.monotonic()
            assert ready(client) == (503, FINE | {"status": "unavailable", "database": "away"})
            first_s = time.monotonic() - asked
            assert ready(client)[0] == 503
            both_s = time.monotonic() - asked
        finally:
            mysql.sigcont()
        assert first_s < health.LIMIT_S + 1 + weather.slack_s
        assert both_s - first_s < 1 + weather.slack_s, "the second one does not wait again"
        eventually(lambda: ready(client) == (200, FINE))


def test_many_who_ask_share_one_question(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    go_on = threading.Event()
    monkeypatch.setattr(health, "FRESH_S", 3600.0)

    def slow(self: health.Health) -> None:
        nonlocal asked
        asked += 1
        go_on.wait(30)

    monkeypatch.setattr(api.app.store.__class__, "check_schema", slow)
    with api.client() as client, ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(ready, client) for _ in range(20)]
        eventually(lambda: asked)
        go_on.set()
        assert [answer.result() for answer in answers] == [(200, FINE)] * 20
        assert ready(client) == (200, FINE)
    assert asked == 1


def test_the_metrics_are_read_by_prometheus(client: httpx.Client) -> None:
    def count() -> dict[tuple[str, str], float]:
        page = client.get("/metrics")
        assert page.headers["content-type"] == prometheus_client.CONTENT_TYPE_LATEST
        assert "version=" in page.headers["content-type"]
        return {
            (s.labels["route"], s.labels.get("status", "time")): s.value
            for family in text_string_to_metric_families(page.text)
            for s in family.samples
            if s.name in {"tandemq_http_requests_total", "tandemq_http_request_seconds_count"}
        }

    before = count()
    for path in ("/jobs/1", "/jobs/2", "/jobs/x", "/nothing", "/nothing/else"):
        client.get(path)
    client.post("/jobs", json={"type": "a"})
    after = count()
    more = {labels: after[labels] - before.get(labels, 0) for labels in after if after[labels] != before.get(labels, 0)}
    assert more == {
        ("show_job", "404"): 2, ("show_job", "400"): 1, ("show_job", "time"): 3, ("(none)", "404"): 2,
        ("(none)", "time"): 2, ("enqueue", "201"): 1, ("enqueue", "time"): 1, ("metrics", "200"): 1,
        ("metrics", "time"): 1,
    }  # fmt: skip


def test_without_prometheus_client_there_is_no_page(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "registry", lambda: None)
    answer = client.get("/metrics")
    assert answer.status_code == 404
    assert "tandemq[metrics]" in answer.json()["detail"]
