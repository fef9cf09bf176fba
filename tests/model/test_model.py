"""Every invariant after every step, under whatever order of steps, faults and acts hypothesis can think of.

A failure prints the commands as JSON: ``bed.run(commands)`` runs them again. ``TANDEMQ_SCENARIOS=full`` runs many more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.model.beds import Bed, embedded
from tests.model.coop import installed
from tests.model.model import COMMANDS, Model, walk
from tests.model.stage import Broken
from tests.scenarios.sizes import size

pytestmark = pytest.mark.timeout(size(400, 7200))

EXAMPLES, STEPS = size((60, 40), (5_000, 80))
WALKS, WALK_STEPS = size((25, 120), (3_000, 250))
SEED = 20_260


@pytest.fixture
def bed() -> Iterator[Bed]:
    with installed(), embedded() as made:
        yield made


class Steps(RuleBasedStateMachine):
    """One example: a model, until the first invariant that does not hold."""

    bed: ClassVar[Bed]

    def __init__(self) -> None:
        super().__init__()
        self._open = self.bed.model()
        self.model: Model = self._open.__enter__()
        self._is_broken = False

    def act(self, name: str, numbers: dict[str, int]) -> None:
        try:
            self.model.do(name, *numbers.values())
        except Broken:
            self._is_broken = True
            note(json.dumps(self.model.commands))
            raise

    def teardown(self) -> None:
        try:
            if not self._is_broken:
                note(json.dumps(self.model.commands))
                self.model.calm()
        finally:
            self._open.__exit__(None, None, None)


def machine(bed: Bed) -> type[RuleBasedStateMachine]:
    """A rule for each command, more than one for those that a run needs most."""

    def rule_of(name: str, bounds: tuple[int, ...]) -> Any:
        def act(self: Steps, **numbers: int) -> None:
            self.act(name, numbers)

        act.__name__ = name
        return rule(**{f"n{i}": st.integers(0, bound - 1) for i, bound in enumerate(bounds)})(act)

    rules = {
        f"{name}_{k}": rule_of(name, bounds)
        for name, (bounds, weight) in COMMANDS.items()
        for k in range(1 + weight // 8)
    }
    return type("Protocol", (Steps,), {"bed": bed, **rules})


def test_no_order_of_steps_breaks_the_protocol(bed: Bed) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine(bed),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_long_random_walks_break_nothing_and_meet_every_kind_of_trouble(bed: Bed) -> None:
    seen: dict[str, int] = {}
    for seed in range(SEED, SEED + WALKS):
        for what, count in bed.run(walk(seed, WALK_STEPS)).ledger.seen.items():
            seen[what] = seen.get(what, 0) + count
    print(f"seeds {SEED}..{SEED + WALKS - 1}: {seen}")
    wanted = {
        "runs",
        "deaths",
        "faults",
        "leases ran out",
        "retried",
        "given back",
        "cancel requested",
        "killed on request",
        "held",
        "released",
        "late store.insert",
    }
    assert wanted <= seen.keys(), "a walk that meets no trouble proves nothing"


def test_the_same_commands_do_the_same_again(bed: Bed) -> None:
    commands = walk(SEED, WALK_STEPS)
    one, other = bed.run(commands), bed.run(commands)
    assert one.outline() == other.outline()
    assert one.ledger.seen == other.ledger.seen
