"""Schemathesis against the served API: all checks, all phases, no route left out, each role for itself.

The small size of ``make fuzz``, with a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tests.api import served
from tests.http.fuzz.running import ROLES, run, tokens, with_tasks

SEED = 20261130
#: Of each route in a phase. Only who may use most routes is asked much.
EXAMPLES = {"read": 3, "produce": 3, "work": 5, "operate": 20}


@pytest.mark.timeout(900)
def test_no_role_finds_a_request_that_is_not_as_the_document_says(env: Settings, tmp_path: Path) -> None:
    with served(env, max_wait_s=0.05) as api:
        with_tasks(api.app)
        of_role = tokens(api.app)
        for role in ROLES:
            found = run(api, of_role, role, tmp_path / role, examples=EXAMPLES[role], seed=SEED)
            assert not (faults := found.faults(role)), "\n".join([found.text, *faults])
            assert found.cases > 500, found.text
