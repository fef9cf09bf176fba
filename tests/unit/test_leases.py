"""A lease that cannot be renewed: the child is told at once, the log only of one that is really lost."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemq.core.settings import Settings
from tandemq.service import QUIET_S
from tandemq.testing import FakeClock
from tandemq.worker.arena import Arena, Batch
from tandemq.worker.leases import LeaseKeeper
from tandemq.worker.options import WorkerOptions

TOKEN = 0xABC


class Silent:
    """A store in which no lease stands any more."""

    def renew(self, tokens: Any, **_: Any) -> set[int]:
        return set()

    def cancel_requested(self, task_ids: Any) -> set[int]:
        return set()

    def worker_beat(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def arena() -> Any:
    made = Arena.create()
    yield made
    made.close()


def keeper_of(arena: Arena, clock: FakeClock | None = None) -> LeaseKeeper:
    child = SimpleNamespace(arena=arena, ready=False, queues=(), asked_to_stop=lambda *_: None)
    return LeaseKeeper(
        cast(Any, Silent()), lambda: [cast(Any, child)], settings=Settings(), worker_id="w", name="w",
        options=WorkerOptions(), clock=clock or FakeClock(), state=lambda: "running",
    )  # fmt: skip


def held(arena: Arena) -> Batch:
    batch = arena.open(TOKEN, [1, 2], 1e12)
    assert batch is not None
    batch.held([1, 2])
    batch.settle([1])
    return batch


def test_a_lease_whose_end_was_just_written_is_not_called_lost(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    keeper = keeper_of(arena)
    batch = held(arena)
    with caplog.at_level(logging.INFO):
        keeper.step()  # its row has ended already: the child's note of that is still to come
        assert batch.lost
        batch.close()
        keeper.step()
        again = held(arena)
        assert not again.lost
        keeper.step()
        again.close()
        keeper.step()
    assert caplog.records == []


def test_a_lost_lease_is_told_once_a_beat_later(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    keeper = keeper_of(arena, clock)
    batch = held(arena)
    with caplog.at_level(logging.INFO):
        keeper.step()
        assert batch.lost
        assert not batch.begin(2, 0.0, None)
        for _ in range(3):
            clock.advance(QUIET_S + 1)  # else the log's own limit would keep it from being told again
            keeper.step()
    assert [record.message for record in caplog.records] == [f"lease {TOKEN:x} of 1 tasks was lost"]
