"""What tandemq ships for its users' tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tandemq import TandemQ
from tandemq.core.clock import Clock
from tandemq.testing import FakeClock, run_until_idle

USERS_TEST = """
from tandemq import TandemQ
from tandemq.testing import run_until_idle

def test_an_order_is_shipped_an_hour_later(tandemq_app, tandemq_clock):
    shipped = []

    @tandemq_app.task(name="ship")
    def ship(order_id: int) -> None:
        shipped.append(order_id)

    ship.using(delay=3600).enqueue(7)
    assert run_until_idle(tandemq_app) == 0
    tandemq_clock.advance(3600)
    assert run_until_idle(tandemq_app) == 1
    assert shipped == [7]
"""


def test_the_plugin_works_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tandemq.testing"]\n')
    (tmp_path / "test_shop.py").write_text(USERS_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path("src").absolute()), "TANDEMQ_DATABASE_URL": "mysql://nowhere/x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(datetime(2030, 1, 1, 12, tzinfo=UTC))
    fake: Clock = clock
    before, begun = fake.now(), fake.monotonic()

    assert fake.now() == before
    clock.advance(1.5)
    fake.sleep(0.25)
    assert fake.now() - before == timedelta(seconds=1.75)
    assert fake.monotonic() - begun == 1.75
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_the_clock_counts_every_threads_steps() -> None:
    clock = FakeClock()
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 5000


def test_tasks_that_enqueue_each_other_for_ever_end_in_an_error(tandemq_app: TandemQ) -> None:
    @tandemq_app.task(name="again")
    def again() -> None:
        tandemq_app.enqueue("again", {})

    again.enqueue()
    with pytest.raises(RuntimeError, match="busy"):
        run_until_idle(tandemq_app, limit=5)
