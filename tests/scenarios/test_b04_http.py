"""B04 over HTTP: ``POST /jobs`` does not wait for a Redis that is down or frozen, and what it accepted runs.

As ``test_b04_enqueue_without_redis``: every request is answered with 201 and the id of a row that exists, within two
seconds, the first one too; once that has failed 99 of 100 are answered within 50 ms. A batch is, too. After Redis is
back everything runs once within ten seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemq.core.percentile import percentile
from tandemq.core.settings import Settings
from tests.api import ServedApi, served
from tests.probe import Probe
from tests.proxy import Proxy
from tests.scenarios.sizes import size
from tests.scenarios.test_b04_enqueue_without_redis import ANSWER_S, CALLERS, EVERY_S, NO_TIMEOUT_S, P99_S, _away
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled, row_count
from tests.servers import RedisServer
from tests.weather import Weather
from tests.workers import bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

SECONDS = size(3.0, 30.0)
NOOP = {"type": "noop", "payload": {}}


def _post_for(api: ServedApi, seconds: float) -> list[tuple[int, float]]:
    """(id, seconds it took) of tasks posted one after the other."""
    done = []
    with api.client() as client:
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            answer = client.post("/jobs", json=NOOP)
            took = time.monotonic() - begun
            assert answer.status_code == 201, answer.text
            done.append((answer.json()["id"], took))
            time.sleep(EVERY_S)
    return done


@pytest.mark.parametrize("how", ["stopped", "paused", "silent"])
def test_post_while_redis_is_away(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    own_redis: Callable[..., RedisServer],
    tmp_path: Path,
    probe: Probe,
    weather: Weather,
    how: str,
) -> None:
    server = own_redis()
    with Proxy("127.0.0.1", server.port) as proxy:
        port = proxy.port if how == "silent" else server.port
        settings = settings_for(mysql_url, f"redis://127.0.0.1:{port}/0", **CALM)
        with bench(settings, tmp_path, probe.environ) as work, served(settings) as api, api.client() as client:
            work.worker("-c", "8").ready()
            ids = [client.post("/jobs", json=NOOP).json()["id"] for _ in range(5)]

            with _away(how, server, proxy):
                begun = time.monotonic()
                answer = client.post("/jobs", json=NOOP)
                first_s = time.monotonic() - begun
                assert answer.status_code == 201, answer.text
                ids.append(answer.json()["id"])
                with ThreadPoolExecutor(CALLERS) as pool:
                    parts = pool.map(_post_for, [api] * CALLERS, [SECONDS] * CALLERS)
                    done = [one for part in parts for one in part]
                begun = time.monotonic()
                answer = client.post("/jobs/batch", json=[NOOP] * 50)
                batch_s = time.monotonic() - begun
                ids += [item["id"] for item in answer.json()["items"]]
                slack_s = weather.slack_s
            back_at = time.time()

            ids += [task_id for task_id, _ in done]
            took = sorted(seconds for _, seconds in done)
            p99_s = percentile(took, 0.99)
            print(
                f"{how}: first {first_s * 1000:.0f} ms, then {len(took)} requests,"
                f" p50 {1000 * percentile(took, 0.5):.1f}, p99 {1000 * p99_s:.1f}, longest {1000 * took[-1]:.0f} ms;"
                f" a batch {1000 * batch_s:.0f} ms; slack {1000 * slack_s:.0f} ms"
            )
            assert first_s < ANSWER_S + slack_s
            assert p99_s < P99_S + slack_s
            assert took[-1] < NO_TIMEOUT_S + slack_s
            assert batch_s < NO_TIMEOUT_S + slack_s
            assert len(set(ids)) == len(ids) == row_count(work)

            assert work.ended(ids) == {"succeeded": len(ids)}
            probe.assert_once(ids)
            last = max(mark.at for mark in probe.marks("start"))
            assert last - back_at < T_REC + SLACK + weather.slack_s
            assert_settled(work, probe, ids)


def test_what_is_answered_is_what_is_stored_while_redis_is_away(
    settings_for: Callable[..., Settings], mysql_url: str, own_redis: Callable[..., RedisServer]
) -> None:
    server = own_redis()
    settings = settings_for(mysql_url, server.url())
    with served(settings) as api, api.client() as client:
        server.stop()
        for body in (NOOP, NOOP | {"idempotency_key": "k"}, NOOP | {"delay": 3600}):
            answer = client.post("/jobs", json=body)
            assert answer.status_code == 201
            stored = api.app.get(answer.json()["id"])
            assert stored is not None
            assert stored.to_json() == answer.json(), json.dumps(body)
