"""Prometheus, Grafana and the compose file over both: valid, wired to each other, and about metrics that there are."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.deployed import known_variables, parsed
from tests.docs.generated import metric_names
from tests.servers import ROOT
from tests.servers.prometheus import promtool
from tests.servers.tools import run

DEPLOY = ROOT / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/tandemq.json").read_text())
PASSWORDS = {
    f"TANDEMQ_{name}_PASSWORD": f"secret{name.lower()}" for name in ("MYSQL", "MYSQL_MIGRATE", "MYSQL_ROOT", "REDIS")
}
PASSWORDS |= {"GRAFANA_PASSWORD": "secretgrafana"}
FILES = ("-f", "deploy/compose.yaml", "-f", "deploy/compose.monitoring.yaml")
PODS = "    kubernetes_sd_configs:\n      - role: pod\n"
#: What Grafana puts in.
INTERVAL = "$__rate_interval"


def expressions() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_every_panel_is_about_metrics_and_labels_that_there_are() -> None:
    known = metric_names()
    for title, expression in expressions():
        asked = set(re.findall(r"\btandemq_\w+", expression))
        assert asked, title
        assert asked <= known, (title, asked - known)


def test_the_board_shows_what_can_be_seen() -> None:
    """A new metric wants a place, or a reason to have none."""
    shown = {name for _, expression in expressions() for name in re.findall(r"\btandemq_\w+", expression)}
    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metric_names()}
    left_out = {
        # Beside a number, to judge others by.
        "tandemq_open_tasks_capped", "tandemq_open_tasks_estimated", "tandemq_dead_tasks_capped",
        "tandemq_claim_batch_size", "tandemq_finish_batch_size", "tandemq_lease_seconds",
        "tandemq_levels_age_seconds",
        # The ends are shown.
        "tandemq_pushed_total", "tandemq_promoted_total", "tandemq_claimed_total", "tandemq_finished_total",
        # Of one process: for its probe, and for alerts.
        "tandemq_children", "tandemq_loop_age_seconds", "tandemq_fetch_age_seconds", "tandemq_worker_slots",
        "tandemq_unled_seconds", "tandemq_breaker_opened_total", "tandemq_breaker_open",
    }  # fmt: skip
    missing = {n for n in base if n not in left_out and not any(re.match(rf"{n}(_bucket)?$", s) for s in shown)}
    assert {name for name in missing if not name.startswith("tandemq_http_")} == set()
    assert left_out <= base


@pytest.mark.prometheus
def test_every_expression_is_one_that_prometheus_can_read(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace(INTERVAL, "1m").replace("$queue", ".*")}
        for number, (_, expression) in enumerate(expressions())
    ]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = promtool(tmp_path, "check", "rules", "board.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_board_is_laid_out_without_overlaps_and_bound_to_a_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.prometheus
def test_prometheus_takes_its_configuration_with_the_alerts(tmp_path: Path) -> None:
    # Debian's Prometheus is built without the discovery of Kubernetes: everything else of the file is looked at.
    text = (DEPLOY / "prometheus/kubernetes.yml").read_text()
    assert text.count(PODS) == 2
    (tmp_path / "kubernetes.yml").write_text(text.replace(PODS, "    static_configs:\n      - targets: [x:1]\n"))
    for folder, name in ((DEPLOY / "prometheus", "prometheus.yml"), (tmp_path, "kubernetes.yml")):
        # --syntax-only: the token's file is in a secret.
        done = promtool(folder, "check", "config", "--syntax-only", name)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "alerts.yml" in yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["rule_files"]


@pytest.mark.parametrize("name", ["prometheus.yml", "kubernetes.yml"])
def test_both_kinds_of_process_are_scraped_and_every_install_has_its_name(name: str) -> None:
    jobs = {
        job["job_name"]: job for job in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["scrape_configs"]
    }
    assert set(jobs) == {"tandemq", "tandemq-api"}
    assert jobs["tandemq-api"]["authorization"] == {"credentials_file": "/run/secrets/tandemq_api_token"}
    for job in jobs.values():
        assert "namespace" in {rule.get("target_label") for rule in job["relabel_configs"]}


@pytest.mark.tools
def test_compose_takes_both_files_together_and_wants_every_password() -> None:
    assert run("docker-compose", *FILES, "config", "-q", **PASSWORDS).returncode == 0
    assert run("docker-compose", "-f", "deploy/compose.yaml", "config", "-q", **PASSWORDS).returncode == 0
    for name in PASSWORDS:
        refused = run("docker-compose", *FILES, "config", "-q", **{k: v for k, v in PASSWORDS.items() if k != name})
        assert refused.returncode != 0, name
        assert name in refused.stderr


#: What runs code of ours, or looks at ours; the two servers are as their images are.
CONFINED = ("users", "migrate", "grants", "worker", "api", "prometheus")


@pytest.mark.tools
def test_a_container_may_not_more_than_it_needs(composed: dict[str, Any]) -> None:
    for name in CONFINED:
        service = composed[name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    for name in ("migrate", "worker", "api"):
        assert composed[name]["tmpfs"] == ["/tmp"], name
    assert composed["grafana"]["cap_drop"] == ["ALL"]


@pytest.mark.tools
def test_a_composed_worker_is_the_least_user_and_is_asked_how_it_is(composed: dict[str, Any]) -> None:
    users = {
        name: re.findall(r"//(\w+):", " ".join(composed[name]["environment"].values()))
        for name in ("migrate", "worker", "api")
    }
    assert users == {
        "migrate": ["tandemq_migrate", "tandemq"], "worker": ["tandemq_app", "tandemq"],
        "api": ["tandemq_app", "tandemq"],
    }  # fmt: skip
    assert composed["worker"]["healthcheck"]["test"] == ["CMD", "tandemq", "health"]
    assert composed["migrate"]["healthcheck"] == {"disable": True}
    for name in ("users", "grants"):
        assert f"/sql/{name}.sql" in " ".join(composed[name]["command"])


@pytest.mark.tools
def test_every_password_is_put_in_and_none_of_the_files_is_left(composed: dict[str, Any], tmp_path: Path) -> None:
    """The shell lines of compose, run here: what the servers are given."""
    for name, given, places in (
        ("users", DEPLOY / "mysql/users.sql", {"/sql/users.sql": ""}),
        ("redis", DEPLOY / "redis/users.acl", {"/etc/redis/users.acl": "", "/tmp/users.acl": "users.acl"}),
    ):
        line = composed[name]["command"][-1].replace("$$", "$")
        for place, ours in places.items():
            line = line.replace(place, str(tmp_path / ours) if ours else str(given))
        line = re.sub(r"\|\s*mysql .*|&&\s*exec .*", "", line, flags=re.DOTALL)
        environ = {k: str(v) for k, v in composed[name]["environment"].items()}
        done = subprocess.run(
            ["sh", "-c", line], env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, check=True
        )
        made = done.stdout or (tmp_path / "users.acl").read_text()
        statements = [line for line in made.splitlines() if not line.startswith("--")]
        assert "CHANGE-ME" not in "".join(statements)
        assert (PASSWORDS["TANDEMQ_MYSQL_PASSWORD"] if name == "users" else PASSWORDS["TANDEMQ_REDIS_PASSWORD"]) in made


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    done = run("docker-compose", *FILES, "--profile", "api", "config", "--format", "json", **PASSWORDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


@pytest.mark.tools
def test_what_is_mounted_is_there_and_nothing_is_open_to_the_world(composed: dict[str, Any]) -> None:
    for name, service in composed.items():
        for volume in service.get("volumes", []):
            if volume["type"] == "bind":
                assert Path(volume["source"]).exists(), (name, volume["source"])
                assert volume["read_only"], name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
        assert not re.search(r":(latest)?$", service["image"]), name


@pytest.mark.tools
def test_the_composed_parts_find_each_other(composed: dict[str, Any]) -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    job, of_api = (each["dns_sd_configs"][0] for each in jobs)
    assert of_api["names"] == ["api"]
    assert of_api["port"] == parsed(composed["api"]["command"], composed["api"]["environment"])["port"]
    assert "/run/secrets/tandemq_api_token" in {volume["target"] for volume in composed["prometheus"]["volumes"]}
    worker = composed["worker"]
    options = parsed(worker["command"], worker["environment"])
    assert job["names"] == ["worker"]
    assert (options["metrics_host"], options["metrics_port"]) == ("0.0.0.0", job["port"])
    assert {name for name in worker["environment"] if name.startswith("TANDEMQ_")} <= known_variables()
    parsed(worker["healthcheck"]["test"][2:])
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/tandemq.yaml").read_text())["providers"][0]
    targets = {volume["target"] for volume in composed["grafana"]["volumes"]}
    assert any(target.startswith(provider["options"]["path"] + "/") for target in targets)


@pytest.mark.tools
def test_the_image_is_one_that_hadolint_likes() -> None:
    done = run("hadolint", "deploy/Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
