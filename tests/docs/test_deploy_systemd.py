"""The units of deploy/: systemd finds no fault in them, and they are closed as far as a worker allows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tests.docs.deployed import known_variables, parsed
from tests.servers import ROOT, MissingServer

UNITS = sorted((ROOT / "deploy").rglob("*.service"))
#: Of what ``systemd-analyze security`` says, 0 (closed) to 10 (open).
MOST_EXPOSED = 1.8
SCORE = re.compile(r"exposure level for \S+: (\d+\.\d) ")
PROGRAM = "/opt/tandemq/bin/tandemq"


def _id(unit: Path) -> str:
    return unit.name


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze; it needs no systemd that runs."""
    if (program := shutil.which("systemd-analyze")) is None:
        raise MissingServer("no systemd-analyze here: apt-get install -y --no-remove systemd")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def copied(unit: Path, folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    """The unit with a program that there is."""
    path = folder / unit.name
    path.write_text(unit.read_text().replace(PROGRAM, "/bin/true").replace(*change))
    return path


def lines(unit: Path) -> dict[str, list[str]]:
    """Every setting of the unit, in order, as systemd has them: one that is given twice adds up."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=_id)
def test_systemd_finds_no_fault(unit: Path, tmp_path: Path) -> None:
    done = analyze("verify", "--recursive-errors=no", str(copied(unit, tmp_path)))

    # An unknown setting is told on stderr, with exit code 0.
    assert (done.returncode, done.stdout, _of(unit, done.stderr)) == (0, "", [])


def test_an_unknown_setting_would_be_found(tmp_path: Path) -> None:
    broken = copied(UNITS[0], tmp_path, ("RestrictNamespaces", "RestrictNs"))

    assert _of(UNITS[0], analyze("verify", "--recursive-errors=no", str(broken)).stderr) != []


def _of(unit: Path, said: str) -> list[str]:
    """What is said of this unit; the machine's own units are not ours to judge."""
    return [line for line in said.splitlines() if unit.name.partition(".")[0].rstrip("@") in line]


@pytest.mark.parametrize("unit", UNITS, ids=_id)
def test_a_unit_is_closed(unit: Path, tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(copied(unit, tmp_path)))
    found = SCORE.search(done.stdout)

    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED
    # By name, whatever this version of systemd thinks they weigh.
    said = lines(unit)
    assert said["SystemCallFilter"][0] == "@system-service"
    assert said["CapabilityBoundingSet"] == [""]
    assert said["NoNewPrivileges"] == ["yes"]
    assert said["ProtectSystem"] == ["strict"]
    assert said["User"][0] not in {"", "root"}


@pytest.mark.parametrize("unit", UNITS, ids=_id)
def test_a_unit_starts_what_there_is_and_holds_no_secret(unit: Path) -> None:
    said = lines(unit)
    variables = dict(pair.split("=", 1) for line in said["Environment"] for pair in line.split())
    variables = {name: value.replace("%i", "default") for name, value in variables.items()}

    assert {name for name in variables if name.startswith("TANDEMQ_")} <= known_variables()
    assert variables["TANDEMQ_EMBEDDED"] == "0"
    assert "://" not in " ".join([*said["Environment"], *said["ExecStart"]])
    assert all(path.lstrip("-").startswith("/etc/tandemq/") for path in said["EnvironmentFile"])
    urls = {"TANDEMQ_DATABASE_URL": "mysql://app@db/tandemq", "TANDEMQ_REDIS_URL": "redis://r/0"}
    Settings.load({**variables, **urls})
    for command in [*said["ExecStart"], *said.get("ExecStartPre", [])]:
        program, *arguments = command.split()
        assert program == PROGRAM
        options = parsed(arguments, variables)
        if "grace_s" in options and command in said["ExecStart"]:
            assert int(said["TimeoutStopSec"][0]) >= float(str(options["grace_s"])) + 10


@pytest.mark.parametrize("unit", [unit for unit in UNITS if "migrate" not in unit.name], ids=_id)
def test_only_the_supervisor_is_told_to_stop(unit: Path) -> None:
    """With control-group the children would get a TERM of their own, in the middle of a task."""
    said = lines(unit)
    assert said["KillMode"] == ["mixed"]
    assert said["KillSignal"] == ["SIGTERM"]
    assert said["Restart"] == ["always"]


def test_an_instance_waits_for_schema_and_rights_and_has_a_page() -> None:
    said = lines(ROOT / "deploy/systemd/tandemq-worker@.service")
    assert said["ExecStartPre"] == [f"{PROGRAM} migrate --check"]
    variables = dict(pair.split("=", 1) for pair in said["Environment"][0].replace("%i", "mail").split())
    assert parsed(said["ExecStart"][0].split()[1:], variables)["metrics_port"] == 9100
    # The kernel kills one process, not the unit with all its tasks.
    assert said["OOMPolicy"] == ["continue"]
    assert "MemoryMax" in said


def test_an_instance_serves_the_queue_of_its_name() -> None:
    unit = ROOT / "deploy/systemd/tandemq-worker@.service"
    variables = dict(pair.split("=", 1) for pair in lines(unit)["Environment"][0].split())
    for name, queues in (("mail", ("mail",)), ("high,default", ("high", "default"))):
        told = {k: v.replace("%i", name) for k, v in variables.items()}
        assert parsed(lines(unit)["ExecStart"][0].split()[1:], told)["queues"] == queues
