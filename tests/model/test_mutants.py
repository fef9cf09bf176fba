"""The model can fail: each of these breakages of the product turns it red, on a list that the product passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.beds import Bed, embedded
from tests.model.coop import installed
from tests.model.mutants import MUTANTS, Mutant, planted
from tests.model.stage import Broken


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with installed(), embedded() as made:
        yield made


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_model_finds(mutant: Mutant, bed: Bed) -> None:
    bed.run(mutant.commands)
    with planted(mutant.edits), pytest.raises(Broken):
        bed.run(mutant.commands)
