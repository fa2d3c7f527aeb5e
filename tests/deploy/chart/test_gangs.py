"""Gangs: their pods are as those of a Deployment, know each other, and start anew together."""

import base64
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from server.cluster.secret import read_cluster_keys
from tests.deploy.chart.api_server import api_server
from tests.deploy.chart.selection import templates
from tests.deploy.helm import Helm3, Helm4, Manifest, objects

GANGS = {"lws": "LeaderWorkerSet", "raycluster": "RayJob"}
modes = pytest.mark.parametrize("mode", GANGS)
MODEL = {"name": "chat", "model": "acme/chat", "options": {"pipeline_stages": 4}}
SECRET = "cluster-secret"
# What a pod has by values, all of it at once.
EVERYTHING: dict[str, Any] = {
    "device": "cuda",
    "gpus": 2,
    "models": [MODEL],
    "auth": {"existingSecret": "keys"},
    "tls": {"existingSecret": "tls"},
    "hub": {"existingSecret": "hub", "endpoint": "https://hub.example.org"},
    "state": {"claim": True},
    "storage": {"create": True, "accessModes": ["ReadWriteMany"], "prefetch": {"enabled": True}},
    "commonLabels": {"team": "models"},
    "podLabels": {"tier": "serving"},
    "podAnnotations": {"example.org/a": "b"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.org"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
# What only a pod that speaks HTTP needs.
OF_HTTP = {"config", "keys", "tls", "state"}


def gang(release: list[Manifest]) -> Manifest:
    (found,) = (each for each in release if each["kind"] in GANGS.values())
    return found


def of_mode(helm: Helm3 | Helm4, mode: str, values: Mapping[str, Any]) -> list[Manifest]:
    more = {"existingSecret": "gang"} if mode == "lws" else {}
    multinode = {"multinode": {"mode": mode, "nodes": 2, **more}}
    return helm.template({**values, **multinode})


def pod_of_a_deployment(helm: Helm3) -> Manifest:
    """With as many GPUs as both pods of a gang."""
    release = helm.template(EVERYTHING | {"gpus": 4})
    (deployment,) = (each for each in release if each["kind"] == "Deployment")
    (template,) = templates(deployment)
    return template


def named(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def everything_but_the_gang_s_own(template: Manifest) -> Manifest:
    """Without what its program is told, and by which it is asked."""
    rest = copy.deepcopy(template)
    rest["metadata"]["labels"].pop("penstock-role", None)
    (container,) = rest["spec"]["containers"]
    for key in ("args", "ports", "lifecycle", "startupProbe", "livenessProbe", "readinessProbe"):
        container.pop(key, None)
    for entries, own in (
        (container["env"], {"POD_IP", "RAY_USAGE_STATS_ENABLED"}),
        (container["volumeMounts"], {"cluster"}),
        (rest["spec"]["volumes"], {"cluster"}),
    ):
        entries[:] = [entry for entry in entries if entry["name"] not in own]
    return rest


@modes
def test_its_pods_are_as_those_of_a_deployment(mode: str, helm3: Helm3) -> None:
    single = pod_of_a_deployment(helm3)
    single["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2
    master, node = templates(gang(of_mode(helm3, mode, EVERYTHING)))
    alike = everything_but_the_gang_s_own(single)
    assert everything_but_the_gang_s_own(master) == alike
    (container,) = alike["spec"]["containers"]
    for entries in (container["volumeMounts"], alike["spec"]["volumes"]):
        assert named(entries).keys() >= OF_HTTP
        entries[:] = [entry for entry in entries if entry["name"] not in OF_HTTP]
    assert everything_but_the_gang_s_own(node) == alike


@modes
def test_its_master_is_asked_as_a_deployment_s_pod(mode: str, helm3: Helm3) -> None:
    (single,) = pod_of_a_deployment(helm3)["spec"]["containers"]
    master, node = (
        each["spec"]["containers"][0] for each in templates(gang(of_mode(helm3, mode, EVERYTHING)))
    )
    for key in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
        assert master[key] == single[key]
    assert single["ports"][0] in master["ports"]
    assert "ports" not in node


def test_a_leaderworkerset_s_pods_are_told_who_they_are(helm3: Helm3) -> None:
    found = gang(of_mode(helm3, "lws", {"models": [MODEL]}))
    gangs = found["spec"]["leaderWorkerTemplate"]
    assert (gangs["size"], gangs["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    master, node = (each["spec"]["containers"][0] for each in templates(found))
    secret = ["--cluster-secret-file", "/etc/penstock/cluster/secret"]
    # The master's own address is there before the headless Service has its name.
    assert master["args"] == [
        *("serve", "--config", "/etc/penstock/config/penstock.yaml"),
        *("--nodes", "$(LWS_GROUP_SIZE)", "--master", "[$(POD_IP)]:7000", *secret),
    ]
    assert named(master["env"])["POD_IP"]["valueFrom"] == {
        "fieldRef": {"fieldPath": "status.podIP"}
    }
    assert node["args"] == [
        *("join", "--rejoin", "--node-rank", "$(LWS_WORKER_INDEX)"),
        *("--master", "$(LWS_LEADER_ADDRESS):7000", *secret),
    ]


def test_a_rayjob_runs_the_master_in_a_cluster_of_its_own(helm3: Helm3) -> None:
    job = gang(of_mode(helm3, "raycluster", {"models": [MODEL]}))["spec"]
    assert job["entrypoint"] == (
        "penstock serve --config /etc/penstock/config/penstock.yaml --executor ray --nodes 2"
    )
    assert job["shutdownAfterJobFinishes"]
    # Other modes wait for a pod that is ready, which it is once the job serves.
    assert job["submissionMode"] == "SidecarMode"
    head, group = job["rayClusterSpec"]["headGroupSpec"], job["rayClusterSpec"]["workerGroupSpecs"]
    assert [each["replicas"] for each in group] == [1]
    (container,) = head["template"]["spec"]["containers"]
    assert not {"command", "args"} & container.keys()
    assert {port["name"] for port in container["ports"]} >= {"http", "dashboard", "gcs-server"}


def test_a_changed_rayjob_is_another_one(helm3: Helm3) -> None:
    """KubeRay disregards changes of one that runs."""
    values = {"models": [MODEL]}
    changed = (values, values | {"tmp": {"sizeLimit": "2Gi"}}, values | {"preStopSeconds": 9})
    names = [gang(of_mode(helm3, "raycluster", each))["metadata"]["name"] for each in changed]
    assert len(set(names)) == len(changed)
    assert gang(of_mode(helm3, "raycluster", values))["metadata"]["name"] == names[0]


@modes
def test_long_names_are_short_enough(mode: str, helm3: Helm3) -> None:
    """Also for the pods' names, which are host names; two models that begin alike stay apart."""
    models = [MODEL | {"name": f"a-model-with-a-very-long-name-{n}" * 2} for n in range(2)]
    values = {"layout": "perModel", "models": models, "fullnameOverride": "n" * 50}
    release = of_mode(helm3, mode, values)
    names = [each["metadata"]["name"] for each in release if each["kind"] == GANGS[mode]]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 47
    services = {each["metadata"]["name"] for each in release if each["kind"] == "Service"}
    assert not services & set(names)  # that of the controller's own headless Service


# The secret


@pytest.fixture
def values() -> dict[str, Any]:
    return {"multinode": {"mode": "lws"}, "models": [MODEL]}


def made_secret(release: list[Manifest]) -> str:
    (found,) = (each for each in release if each["kind"] == "Secret")
    return found["data"][SECRET]


def test_it_is_made_and_differs(values: dict[str, Any], helm4: Helm4, tmp_path: Path) -> None:
    first, second = (made_secret(helm4.template(values)) for _ in range(2))
    assert first != second
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(base64.b64decode(first))
    read_cluster_keys(str(file), "--x")


def test_nothing_else_has_it(values: dict[str, Any], helm4: Helm4) -> None:
    """No configuration, command line, environment variable or note."""
    files = helm4.files(values)
    encoded = made_secret(objects(files.pop("multinode/secret.yaml")))
    assert "NOTES.txt" in files
    for known in (encoded, base64.b64decode(encoded).decode()):
        assert not [name for name, text in files.items() if known in text]


def test_it_is_a_file_of_its_pods(values: dict[str, Any], helm4: Helm4) -> None:
    for template in templates(gang(helm4.template(values))):
        (container,) = template["spec"]["containers"]
        assert named(container["volumeMounts"])["cluster"]["readOnly"]
        assert "cluster-secret" not in json.dumps(container["env"])
        assert named(template["spec"]["volumes"])["cluster"]["secret"] == {
            "secretName": "demo-penstock-cluster-secret",
            "defaultMode": 0o440,
            "items": [{"key": SECRET, "path": "secret"}],
        }


def test_an_upgrade_keeps_it(values: dict[str, Any], helm4: Helm4) -> None:
    """By what the cluster answers; without a cluster Helm looks nothing up."""
    off = {"enabled": False}
    alone = values | {
        "networkPolicy": off,
        "tests": off,
        "state": {"claim": False},
        "serviceAccount": {"create": False},
    }
    kept = base64.b64encode(b"the secret of the first one").decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "demo-penstock-cluster-secret",
            "namespace": "models",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "demo",
                "meta.helm.sh/release-namespace": "models",
            },
        },
        "data": {SECRET: kept},
    }
    with api_server(secret) as server:
        assert made_secret(helm4.install(alone, server)) == kept


def test_there_is_none_where_it_is_not_needed(values: dict[str, Any], helm3: Helm3) -> None:
    for multinode in (
        {"mode": "none"},
        {"mode": "lws", "existingSecret": "gang"},
        {"mode": "raycluster"},
    ):
        release = helm3.template(values | {"multinode": multinode})
        assert "Secret" not in {each["kind"] for each in release}
