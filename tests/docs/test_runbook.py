"""The runbook has a section for each alert; each command in it (and in the pages beside it) is one that there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.docs.deployed import known_variables, parsed
from tests.docs.generated import metric_names
from tests.servers import ROOT

RUNBOOK = ROOT / "deploy" / "runbook.md"
PAGES = [RUNBOOK, ROOT / "deploy/README.md", ROOT / "docs/deployment.md", ROOT / "docs/upgrade.md"]
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


def sections() -> dict[str, str]:
    parts = re.split(r"^### (\w+)\n", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {
        name: re.split(r"^## ", text, flags=re.MULTILINE)[0]
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def commands(page: Path) -> list[str]:
    text = page.read_text()
    typed = re.findall(r"^(?:\$ |    )(tandemq .*?)(?: &)?$", text, flags=re.MULTILINE)
    return [*typed, *re.findall(r"`(tandemq [^`]+)`", text)]


def test_every_alert_has_its_section_and_no_section_is_about_another() -> None:
    assert sorted(sections()) == sorted(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_section_says_what_it_means_where_to_look_what_to_do_and_what_not(alert: str) -> None:
    text = sections()[alert].strip()
    meaning, *rest = text.split("\n- ")
    assert len(meaning) > 40
    said = {line.partition(":")[0]: line for line in rest}
    assert list(said) == ["Look", "Act", "Do not"]
    assert re.search(r"`(tandemq |SHOW )|503", said["Look"]), "no command to look with"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one_that_there_is(page: Path) -> None:
    found = commands(page)
    assert found
    for command in found:
        words = shlex.split(command.partition("#")[0].partition(" > ")[0])[1:]
        if words[0] == "-A":
            words = words[2:]
        parsed([{"ID": "1", "NAME": "mail-1"}.get(word, word) for word in words])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_and_metric_named_is_one_that_there_is(page: Path) -> None:
    text = page.read_text()
    of_compose = {f"TANDEMQ_{name}_PASSWORD" for name in ("MYSQL", "MYSQL_MIGRATE", "MYSQL_ROOT", "REDIS")}
    of_tests = {"TANDEMQ_TEST_LEAST_PRIVILEGE"}
    assert set(re.findall(r"TANDEMQ_[A-Z_]+[A-Z]", text)) - known_variables() - of_compose - of_tests == set()
    metrics = set(re.findall(r"`(tandemq_\w+?)`", text)) - _of_the_schema()
    assert metrics - metric_names() == set()


def _of_the_schema() -> set[str]:
    files = [*(ROOT / "sql/mysql").glob("*.sql"), ROOT / "deploy/mysql/users.sql"]
    return set(re.findall(r"tandemq_\w+", " ".join(path.read_text() for path in files)))


def test_headings_that_are_linked_to_are_there() -> None:
    text = RUNBOOK.read_text()
    headings = set(map(_anchor, re.findall(r"^#+ (.+)$", text, re.MULTILINE)))
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
