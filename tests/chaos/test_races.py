"""Every directed race in every order, on real servers; ten times each at full size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.races import SPECS, Order, orders, race
from tests.chaos.races_duel import Spec
from tests.chaos.races_mutants import MUTANTS, ROOT
from tests.chaos.races_stage import Stage, open_stage
from tests.scenarios.sizes import size
from tests.servers import MySQLServer, RedisServer

TIMES = size(1, 10)
EVERY = [
    pytest.param(spec, order, id=f"{spec.name}: {order}".replace(" ", "_"))
    for spec in SPECS.values()
    for order in orders(spec)
]


@pytest.fixture(scope="module")
def stage(mysql_server: MySQLServer, redis_server: RedisServer) -> Iterator[Stage]:
    with open_stage(mysql_server, redis_server) as made:
        yield made


@pytest.mark.parametrize(("spec", "order"), EVERY)
def test_a_race_has_one_winner_and_one_final_state(stage: Stage, spec: Spec, order: Order) -> None:
    for _ in range(TIMES):
        race(stage, spec, order)


def test_every_pair_that_the_reliability_page_names_is_raced_in_both_orders() -> None:
    """A race whose second actor is never held would show one order only."""
    for spec in SPECS.values():
        assert len(spec.points) == 2, spec.name
        assert all(spec.points.values()), spec.name


def test_every_breakage_that_must_turn_a_race_red_still_fits_the_product() -> None:
    """They are tried by hand (``python -m tests.chaos.races_mutants``): one that no longer fits would prove nothing."""
    for mutant in MUTANTS:
        text = (ROOT / "src" / "tandemq" / mutant.file).read_text(encoding="utf-8")
        assert mutant.old in text, f"{mutant.file} no longer holds {mutant.old!r}"
