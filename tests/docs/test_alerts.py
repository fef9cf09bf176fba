"""Every alert fires when it must and is silent when it must not: promtool says so. And it is about metrics that are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.generated import metric_names
from tests.servers import ROOT
from tests.servers.prometheus import promtool

RULES = ROOT / "deploy" / "prometheus"
ALERTS: list[dict[str, Any]] = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in ALERTS]

pytestmark = pytest.mark.prometheus


def test_the_rules_are_rules_and_their_tests_pass() -> None:
    checked = promtool(RULES, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool(RULES, "test", "rules", "alerts_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    asked = [(case["alertname"], bool(case["exp_alerts"])) for test in cases for case in test["alert_rule_test"]]

    assert {name for name, fires in asked if fires} == set(NAMES)
    assert {name for name, fires in asked if not fires} == set(NAMES)


@pytest.mark.parametrize("expression", ["vector(1)", "vector(1) > 2"], ids=["always", "never"])
def test_a_rule_that_is_broken_is_found_out(expression: str, tmp_path: Path) -> None:
    rules = [{**rule, "expr": expression} for rule in ALERTS]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "tandemq", "rules": rules}]}))
    shutil.copy(RULES / "alerts_test.yml", tmp_path)

    tested = promtool(tmp_path, "test", "rules", "alerts_test.yml")

    assert tested.returncode != 0
    found = set(re.findall(r"alertname: (\w+)", tested.stdout + tested.stderr))
    assert found == set(NAMES)


def test_rules_are_about_metrics_that_there_are() -> None:
    known = metric_names()
    asked = {name for rule in ALERTS for name in re.findall(r"\btandemq_\w+", rule["expr"])}
    # The API counts its own requests.
    assert {name for name in asked - known if not name.startswith("tandemq_http_")} == set()


def test_every_alert_says_what_it_means_in_both_lines() -> None:
    for rule in ALERTS:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_no_rule_mixes_installs() -> None:
    """Every series that is put together, or held against another, keeps the label that tells installs apart."""
    for rule in ALERTS:
        expression = rule["expr"]
        for kept in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert "namespace" in kept, rule["alert"]
        assert not re.search(r"\b(?:sum|max|min|count|avg)\s*\((?!\S* by)", expression), rule["alert"]
