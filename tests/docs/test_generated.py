"""Pages that repeat what the code says say the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.deployed import known_variables
from tests.docs.generated import PARTS, written
from tests.servers import ROOT

BANNED = {"utils", "helpers", "common", "misc", "manager", "data", "info"}


@pytest.mark.parametrize(("page", "marker", "make"), PARTS, ids=[marker for _, marker, _ in PARTS])
def test_a_generated_part_is_up_to_date(page: Path, marker: str, make: Callable[[], str]) -> None:
    assert written(page, marker) == make(), "run: python -m tests.docs.generated"


def test_every_variable_is_on_the_page_about_them() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert known_variables() - set(re.findall(r"TANDEMQ_[A-Z0-9_]+", page)) == set()


def _names() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield from ((part, path) for part in path.relative_to(ROOT / "src").with_suffix("").parts)
        yield from ((name, path) for name in re.findall(r"^\s*class (\w+)", path.read_text(), re.MULTILINE))


def test_no_file_or_class_has_a_name_that_says_nothing() -> None:
    found = []
    for name, path in _names():
        words = {w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}
        if words & BANNED:
            found.append(f"{name} in {path.relative_to(ROOT)}")
    assert found == []


def test_the_changelog_begins_with_this_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None

    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[:2] == ["Unreleased", version.group(1)]
