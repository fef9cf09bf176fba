"""deploy/kubernetes: rendered by kustomize, valid, hardened, and about flags and variables that there are."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import yaml

from tandemq.core.settings import Settings
from tests.docs.deployed import known_variables, parsed
from tests.docs.generated import metric_names
from tests.servers import ROOT
from tests.servers.tools import run

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["base", "overlays/production"]
#: The oldest and the newest that the files are for.
VERSIONS = ["1.30", "1.37"]

pytestmark = pytest.mark.tools


@functools.cache
def rendered(overlay: str) -> str:
    done = run("kubectl", "kustomize", str(FOLDER / overlay))
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    found = [made for made in yaml.safe_load_all(rendered(overlay)) if not kinds or made["kind"] in kinds]
    assert found, kinds
    return found


def one(overlay: str, kind: str, name: str) -> dict[str, Any]:
    (found,) = (made for made in objects(overlay, kind) if made["metadata"]["name"] == name)
    return found


def pods(overlay: str) -> dict[str, dict[str, Any]]:
    return {made["metadata"]["name"]: made["spec"]["template"] for made in objects(overlay, "Deployment", "Job")}


def containers(overlay: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, container)
        for name, pod in pods(overlay).items()
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid_and_holds_no_field_that_is_not_known(overlay: str, version: str, tmp_path: Any) -> None:
    path = tmp_path / "all.yaml"
    # Of KEDA there is no schema here: see the test of the scaling.
    kept = [made for made in objects(overlay) if made["kind"] != "ScaledObject"]
    path.write_text(yaml.safe_dump_all(kept))

    done = run("kubernetes-validate", "--strict", "-k", version, str(path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(kept)


def test_an_unknown_field_would_be_found(tmp_path: Any) -> None:
    broken = one("base", "Deployment", "tandemq-worker")
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(broken))

    assert run("kubernetes-validate", "--strict", str(path)).returncode != 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_may_more_than_it_needs(overlay: str) -> None:
    for name, pod in pods(overlay).items():
        spec = pod["spec"]
        secured = spec["securityContext"]
        assert secured["runAsNonRoot"], name
        assert secured["runAsUser"] == _user_of_the_image()
        assert secured["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
    for name, container in containers(overlay):
        secured = container["securityContext"]
        assert secured["allowPrivilegeEscalation"] is False, name
        assert secured["readOnlyRootFilesystem"], name
        assert secured["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert container["resources"]["limits"].keys() == {"memory"}, name  # throttled, leases are renewed late
    namespace = one(overlay, "Namespace", "tandemq")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def _user_of_the_image() -> int:
    found = re.search(r"^USER (\d+)$", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)
    assert found
    return int(found[1])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_cluster_does_not_put_variables_in_that_are_flags_of_ours(overlay: str) -> None:
    """A service tandemq-api makes TANDEMQ_API_PORT=tcp://... in every pod, and that is --port of ``tandemq api``."""
    services = {made["metadata"]["name"] for made in objects(overlay, "Service")}
    made = {f"{name.upper().replace('-', '_')}_PORT" for name in services}
    assert made == {"TANDEMQ_API_PORT"}
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods(overlay).values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_commands_and_variables_are_ones_that_there_are(overlay: str) -> None:
    config = one(overlay, "ConfigMap", "tandemq")["data"]
    secrets = {made["metadata"]["name"]: made["stringData"] for made in example_secrets()}
    for name, container in containers(overlay):
        told = {k: v for source in container["envFrom"] for k, v in _of(source, config, secrets).items()}
        told |= {variable["name"]: variable["value"] for variable in container.get("env", [])}
        assert set(told) <= known_variables(), name
        settings = Settings.load(told)
        assert not settings.embedded
        assert settings.database_url
        parsed(container["args"], told)


def example_secrets() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "base/secret.example.yaml").read_text()))


def _of(source: dict[str, Any], config: dict[str, str], secrets: dict[str, dict[str, str]]) -> dict[str, str]:
    if "configMapRef" in source:
        assert source["configMapRef"] == {"name": "tandemq"}
        return config
    return secrets[source["secretRef"]["name"]]


def test_the_migration_has_its_own_user_and_no_secret_is_deployed() -> None:
    users = {
        made["metadata"]["name"]: re.sub(r":.*", "", made["stringData"]["TANDEMQ_DATABASE_URL"].split("//")[1])
        for made in example_secrets()
    }
    assert users == {"tandemq-app": "tandemq_app", "tandemq-migrate": "tandemq_migrate"}
    assert not [made for made in objects("overlays/production") if made["kind"] == "Secret"]
    sources = {name: [s.get("secretRef") for s in c["envFrom"]] for name, c in containers("base")}
    assert {"name": "tandemq-migrate"} in sources["tandemq-migrate"]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(("deployment", "pre_stop_s"), [("tandemq-worker", 0), ("tandemq-api", 5)])
def test_a_pod_is_given_longer_than_it_drains(overlay: str, deployment: str, pre_stop_s: int) -> None:
    spec = one(overlay, "Deployment", deployment)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    grace = parsed(container["args"])["grace_s"]

    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= float(str(grace)) + pre_stop_s + 10
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_new_code_waits_for_its_schema_and_probes_ask_its_own_listener(overlay: str) -> None:
    for name in ("tandemq-worker", "tandemq-api"):
        spec = one(overlay, "Deployment", name)["spec"]["template"]["spec"]
        assert [c["args"] for c in spec["initContainers"]] == [["migrate", "--check"]]
        (container,) = spec["containers"]
        (port,) = container["ports"]
        paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "startup")}
        assert paths == {"/health/live"}  # no pod is killed because a server is away
        assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": port["name"]}
        options = parsed(container["args"])
        assert port["containerPort"] == float(str(options.get("metrics_port") or options["port"]))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_select_something(overlay: str) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(overlay).items()}
    asked = [
        (made["kind"], made["spec"]["selector"]["matchLabels"]) for made in objects(overlay, "PodDisruptionBudget")
    ]
    asked += [("Service", made["spec"]["selector"]) for made in objects(overlay, "Service")]
    policies = objects(overlay, "NetworkPolicy")
    asked += [("NetworkPolicy", made["spec"]["podSelector"].get("matchLabels", {})) for made in policies]
    asked += [
        ("spread", spread["labelSelector"]["matchLabels"])
        for pod in pods(overlay).values()
        for spread in pod["spec"].get("topologySpreadConstraints", [])
    ]
    for kind, wanted in asked:
        assert any(wanted.items() <= has.items() for has in labels.values()), (kind, wanted)
    budgets = {made["metadata"]["name"]: made["spec"] for made in objects(overlay, "PodDisruptionBudget")}
    assert set(budgets) == {"tandemq-worker", "tandemq-api"}
    assert all(spec["minAvailable"] >= 1 and "maxUnavailable" not in spec for spec in budgets.values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_comes_in_but_who_is_named(overlay: str) -> None:
    """Who (namespaces) may reach what (port), for each policy; the one for all pods lets nobody in."""
    found: dict[str, list[tuple[list[str], list[str]]]] = {}
    for made in objects(overlay, "NetworkPolicy"):
        assert made["spec"]["policyTypes"] == ["Ingress"]
        found[made["metadata"]["name"]] = [
            (
                [f["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for f in rule["from"]],
                [port["port"] for port in rule["ports"]],
            )
            for rule in made["spec"].get("ingress", [])
        ]
    assert found == {
        "tandemq": [],
        "tandemq-worker-metrics": [(["monitoring"], ["metrics"])],
        "tandemq-api": [(["ingress", "monitoring"], ["http"])],
    }
    assert one(overlay, "NetworkPolicy", "tandemq")["spec"]["podSelector"] == {}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_runs_handlers_or_requests_has_somewhere_to_write(overlay: str) -> None:
    for made in objects(overlay, "Deployment"):
        spec = made["spec"]["template"]["spec"]
        (volume,) = spec["volumes"]
        assert volume["emptyDir"]["sizeLimit"]
        (container,) = spec["containers"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/tmp"}]


def test_prometheus_finds_the_pods_by_what_they_are_called() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/kubernetes.yml").read_text())["scrape_configs"]
    kept = {job["relabel_configs"][0]["regex"] for job in jobs}
    there = {
        f"{pod['metadata']['labels']['app.kubernetes.io/name']};{container['ports'][0]['name']}"
        for pod in pods("base").values()
        for container in pod["spec"]["containers"]
        if "ports" in container
    }
    assert kept == there


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_scaling_counts_what_runs_too_and_by_a_metric_that_there_is(overlay: str) -> None:
    spec = one(overlay, "ScaledObject", "tandemq-worker")["spec"]
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "fallback"}
    assert set(spec) == known | {"advanced", "triggers"}
    assert spec["scaleTargetRef"] == {"name": "tandemq-worker"}
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    assert "replicas" not in one(overlay, "Deployment", "tandemq-worker")["spec"]
    (trigger,) = spec["triggers"]
    query = trigger["metadata"]["query"]
    assert set(re.findall(r"tandemq_\w+", query)) <= metric_names()
    namespace = one(overlay, "Namespace", "tandemq")["metadata"]["name"]
    # One number for each, however many pages show it; of this install only; and no answer is no zero.
    series = f'tandemq_open_tasks{{namespace="{namespace}", state=~"ready|running"}}'
    assert query == f"sum(max by (queue, priority, state) ({series}))"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    (container,) = one(overlay, "Deployment", "tandemq-worker")["spec"]["template"]["spec"]["containers"]
    options = parsed(container["args"])
    assert int(trigger["metadata"]["threshold"]) == int(str(options["slots"])) * int(str(options["processes"]))


def test_production_runs_a_named_version_of_the_image() -> None:
    images = {container["image"] for _, container in containers("overlays/production")}
    assert len(images) == 1
    assert re.fullmatch(r"registry\.example\.com/shop:\d+\.\d+\.\d+", images.pop())


def test_every_file_of_the_base_is_deployed_or_said_to_be_an_example() -> None:
    told = yaml.safe_load((FOLDER / "base/kustomization.yaml").read_text())["resources"]
    there = {path.name for path in (FOLDER / "base").glob("*.yaml")} - {"kustomization.yaml"}
    assert there == {*told, "secret.example.yaml"}
