"""B04: enqueueing does not wait for a Redis that is down or frozen, and what it accepted runs.

Required, with Redis stopped, paused, or silent behind the network: the row is committed and the caller has its id
within two seconds, the first call too; once that has failed (the breaker is open) no call waits for Redis: 99 of 100
answer within 50 ms, whatever the others try meanwhile. No error is raised for a row that exists, no id is returned
for one that does not. After Redis is back everything runs once within ten seconds. HTTP comes with its own issue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tandemq.core.percentile import percentile
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.proxy import Proxy
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled, row_count
from tests.servers import RedisServer
from tests.weather import Weather
from tests.workers import APP, Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

SECONDS = size(4.0, 30.0)
CALLERS = 4
EVERY_S = 0.04
ANSWER_S = 2.0
P99_S = 0.05
#: No call may meet a time-out of Redis (1 s): that is what the breaker is for.
NO_TIMEOUT_S = 0.5


@contextmanager
def _away(how: str, server: RedisServer, proxy: Proxy) -> Iterator[None]:
    if how == "stopped":
        server.stop()
        yield
        server.start()
    elif how == "paused":
        with server.client() as raw:
            raw.execute_command("CLIENT", "PAUSE", "600000", "ALL")
            yield
        server.kill9()  # it would not listen to CLIENT UNPAUSE
        server.start()
    else:
        proxy.silent = True
        yield
        proxy.silent = False


def _enqueue_for(work: Bench, seconds: float) -> list[tuple[int, float]]:
    """(id, seconds it took) of tasks enqueued one after the other."""
    done = []
    end = time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        task_id = work.app.enqueue("noop", {}).id
        done.append((task_id, time.monotonic() - begun))
        time.sleep(EVERY_S)
    return done


def _command(settings: Settings) -> tuple[int, float]:
    """The id of a task enqueued by ``tandemq enqueue``, and how many seconds the whole command took."""
    begun = time.monotonic()
    answer = tandemq(settings, "-A", APP, "enqueue", "noop", "--json")
    return answer.json["id"], time.monotonic() - begun


@pytest.mark.parametrize("how", ["stopped", "paused", "silent"])
def test_enqueue_while_redis_is_away(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    redis_url: str,
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
        with bench(settings, tmp_path, probe.environ) as work:
            work.worker("-c", "8").ready()
            ids = work.ids("noop", 5)

            with _away(how, server, proxy):
                begun = time.monotonic()
                ids.append(work.app.enqueue("noop", {}).id)
                first_s = time.monotonic() - begun
                with ThreadPoolExecutor(CALLERS) as pool:
                    done = [
                        one for part in pool.map(_enqueue_for, [work] * CALLERS, [SECONDS] * CALLERS) for one in part
                    ]
                with ThreadPoolExecutor(2) as pool:  # one beside it with a Redis that answers: how busy the machine is
                    well = replace(settings, redis_url=redis_url)
                    lines = [list(pool.map(_command, [settings, well])) for _ in range(size(1, 5))]
                slack_s = weather.slack_s
            back_at = time.time()

            ids += [task_id for task_id, _ in done] + [task_id for pair in lines for task_id, _ in pair]
            took = sorted(seconds for _, seconds in done)
            p99_s = percentile(took, 0.99)
            line_s = max(sick_s - well_s for (_, sick_s), (_, well_s) in lines)
            print(
                f"{how}: first {first_s * 1000:.0f} ms, then {len(took)} calls, p50 {1000 * percentile(took, 0.5):.1f},"
                f" p99 {1000 * p99_s:.1f}, longest {1000 * took[-1]:.0f} ms; tandemq enqueue {line_s:.2f} s more"
                f" than with Redis; slack {1000 * slack_s:.0f} ms"
            )
            assert first_s < ANSWER_S + slack_s
            assert p99_s < P99_S + slack_s
            assert took[-1] < NO_TIMEOUT_S + slack_s
            assert line_s < ANSWER_S + slack_s
            assert len(set(ids)) == len(ids) == row_count(work)

            assert work.ended(ids) == {"succeeded": len(ids)}
            probe.assert_once(ids)
            last = max(mark.at for mark in probe.marks("start"))
            assert last - back_at < T_REC + SLACK + weather.slack_s
            assert_settled(work, probe, ids)
