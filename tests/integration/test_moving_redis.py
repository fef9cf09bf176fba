"""deploy/runbook.md, "Moving to another Redis live": both are served for a while; what is left behind is found."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.probe import Probe
from tests.servers import RedisServer
from tests.workers import bench

PACE = {"lease_s": 3.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "mover_s": 0.1}


def test_tasks_are_run_while_the_redis_is_changed_under_them(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    redis_url: str,
    own_redis: Callable[..., RedisServer],
    tmp_path: Path,
    probe: Probe,
) -> None:
    old = settings_for(mysql_url, redis_url, **PACE)
    target = own_redis()
    new = replace(old, redis_url=target.url())
    (tmp_path / "new").mkdir()
    with bench(old, tmp_path, probe.environ) as before, bench(new, tmp_path / "new", probe.environ) as after:
        leaving = before.worker("-c", "4").ready()
        ids = before.ids("noop", 50) + before.ids("noop", 20, delay=4)
        coming = after.worker("-c", "4").ready()
        # Both at once, whichever of them leads; producers of both kinds.
        for _ in range(10):
            ids += before.ids("noop", 10) + after.ids("noop", 10)
        leaving.signal(signal.SIGTERM)
        assert leaving.wait() == 0
        # An old producer still pushes to the Redis that nobody pops from any more.
        late = before.ids("noop", 30) + before.ids("noop", 5, delay=1)
        assert after.ended([*ids, *late]) == {"succeeded": 50 + 20 + 200 + 35}, coming.text()
        probe.assert_once([*ids, *late])
        # They came by way of MySQL: their ids still lie where the old producer put them.
        assert before.app.broker.depth(Level("default", 0)) >= 30
