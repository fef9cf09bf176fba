"""The deploy files hold what they must, checked without Docker or systemd."""

from __future__ import annotations

import configparser
import json
import re

import pytest

from tandemq.core.settings import Settings
from tandemq.http import ApiOptions
from tests.servers import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE_PASSWORDS = {f"TANDEMQ_{name}_PASSWORD" for name in ("MYSQL", "MYSQL_MIGRATE", "MYSQL_ROOT", "REDIS")}


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_runs_the_command_line_itself_without_root_and_never_embedded() -> None:
    said = dict(_instructions())

    assert json.loads(said["ENTRYPOINT"]) == ["tandemq"]
    assert isinstance(json.loads(said["CMD"]), list)
    assert "TANDEMQ_EMBEDDED=0" in said["ENV"]
    assert int(said["USER"]) > 0
    assert said["STOPSIGNAL"] == "SIGTERM"
    checked = said["HEALTHCHECK"].partition(" CMD ")[2]
    assert json.loads(checked) == ["tandemq", "health"]


def test_the_image_is_built_in_two_stages_from_what_the_context_lets_through() -> None:
    instructions = _instructions()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for word, rest in instructions
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }

    assert sum(word == "FROM" for word, _ in instructions) == 2
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def _services() -> dict[str, str]:
    text = (DEPLOY / "compose.yaml").read_text()
    body = text[text.index("\nservices:\n") : text.index("\nvolumes:\n")]
    parts = re.split(r"^  (\w+):(?: &\w+)?\n", body, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_compose_has_both_servers_a_migration_and_a_worker_in_order() -> None:
    services = _services()

    assert set(services) == {"mysql", "redis", "users", "migrate", "grants", "worker", "api"}
    assert "redis-server /etc/redis/redis.conf --aclfile /tmp/users.acl" in services["redis"]
    assert "./redis:/etc/redis:ro" in services["redis"]
    assert "./mysql/tandemq.cnf:/etc/mysql/conf.d/tandemq.cnf:ro" in services["mysql"]
    assert all("healthcheck:" in services[name] for name in ("mysql", "redis", "worker", "api"))
    assert re.search(r"mysql:\n\s+condition: service_healthy", services["users"])
    for before, after in (("users", "migrate"), ("migrate", "grants"), ("grants", "worker"), ("grants", "api")):
        assert re.search(rf"{before}:\n\s+condition: service_completed_successfully", services[after]), after
    for name in ("worker", "api"):
        assert re.search(r"redis:\n\s+condition: service_healthy", services[name])


def test_composes_api_is_asked_for_and_reached_from_this_machine_only() -> None:
    api = _services()["api"]

    assert 'profiles: ["api"]' in api  # without a token it does not start, and would be started again and again
    assert re.search(r'ports: \["127\.0\.0\.1:(\d+):\1"\]', api)
    assert any('".[http]"' in rest for word, rest in _instructions() if word == "RUN")


def test_compose_refuses_to_start_without_passwords_and_holds_none() -> None:
    text = re.sub(r"^\s*#.*$", "", (DEPLOY / "compose.yaml").read_text(), flags=re.MULTILINE)
    variables = re.findall(r"(?<!\$)\$\{(\w+)(:\?)?", text)

    assert {name for name, _ in variables} == COMPOSE_PASSWORDS
    assert all(required for _, required in variables)
    assert all("${" in value for value in re.findall(r"PASSWORD: (.+)", text))


def test_compose_waits_longer_than_the_worker_drains() -> None:
    worker = _services()["worker"]
    grace = re.search(r'"--grace", "(\d+)"', worker)
    patience = re.search(r"stop_grace_period: (\d+)s", worker)

    assert grace is not None
    assert patience is not None
    assert int(patience[1]) >= int(grace[1]) + 10


def _unit(name: str = "worker") -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / f"tandemq-{name}.service").read_text())
    return unit


def test_the_unit_drains_and_only_then_kills() -> None:
    service = _unit()["Service"]
    grace = re.search(r"--grace (\d+)", service["ExecStart"])

    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed"
    assert grace is not None
    assert int(service["TimeoutStopSec"]) >= int(grace[1]) + 10
    assert service["Restart"] == "always"


def test_the_api_has_time_to_answer_before_it_is_killed() -> None:
    service = _unit("api")["Service"]

    assert service["ExecStart"].split()[1:4] == ["api", "--host", "127.0.0.1"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) >= ApiOptions().grace_s + 10
    patience = re.search(r"stop_grace_period: (\d+)s", _services()["api"])
    assert patience is not None
    assert int(patience[1]) >= ApiOptions().grace_s + 10


@pytest.mark.parametrize("name", ["worker", "api"])
def test_a_unit_is_hardened_and_keeps_secrets_out_of_itself(name: str) -> None:
    unit = _unit(name)
    service = unit["Service"]

    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert service["User"] not in {"", "root"}
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert "TANDEMQ_EMBEDDED=0" in service["Environment"]
    assert "://" not in service["ExecStart"] + service["Environment"]
    assert service["EnvironmentFile"].startswith("/etc/")


def test_the_example_environment_is_one_that_tandemq_accepts() -> None:
    lines = (DEPLOY / "worker.env.example").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    settings = Settings.load(environ | {"TANDEMQ_EMBEDDED": "0"})

    assert settings.database_url
    assert settings.redis_url
    assert settings.app


def test_every_variable_in_the_deploy_files_exists() -> None:
    known = {field.metadata["var"] for field in Settings.__dataclass_fields__.values()}
    own = COMPOSE_PASSWORDS | {"TANDEMQ_"}
    text = "\n".join(path.read_text() for path in DEPLOY.iterdir() if path.is_file())

    assert set(re.findall(r"TANDEMQ_[A-Z_]+", text)) <= known | own
