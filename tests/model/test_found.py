"""What the model has found in the product, each as small as it can be shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemq.core.errors import StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.testing import FakeClock
from tests.healing import LOW, World, open_world


@pytest.fixture
def world(settings_for: Callable[..., Settings], tmp_path: object) -> World:
    settings = settings_for(f"sqlite:///{tmp_path}/world.db", "redis://localhost:1/0")
    return open_world(settings, FakeClock(), real=False)


def test_a_mover_that_could_not_read_the_install_does_not_take_its_own_namespace_for_anothers(world: World) -> None:
    """MySQL answered the question who leads and went away before the next one: ForeignInstall, logged as an error."""
    world.passes(world.reconciler())
    (task_id,) = world.enqueue(delay_s=1.0)
    mover = world.mover()

    world.store.dies("install_id", error=StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        mover.step()
    world.clock.advance(2.0)
    mover.step()

    assert world.listed(LOW) == [task_id]
    world.close()
