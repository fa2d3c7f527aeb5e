"""Custom resources are checked: a bad one of each kind is refused, a good one is not."""

import copy
from typing import Any

import pytest

from tests.deploy import custom_resources
from tests.deploy.helm import Manifest

SELECTOR = {"matchLabels": {"app": "penstock"}}


def manifest(api: str, kind: str, spec: dict[str, Any]) -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "demo"}, "spec": spec}


GOOD = [
    manifest(
        "keda.sh/v1alpha1",
        "ScaledObject",
        {
            "scaleTargetRef": {"name": "demo"},
            "minReplicaCount": 1,
            "triggers": [
                {"type": "prometheus", "metadata": {"query": "up", "threshold": "1"}},
            ],
        },
    ),
    manifest(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        {"selector": SELECTOR, "endpoints": [{"port": "http", "interval": "15s"}]},
    ),
    manifest(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        {"selector": SELECTOR, "podMetricsEndpoints": [{"port": "http", "interval": "15s"}]},
    ),
    manifest(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        {"groups": [{"name": "demo", "rules": [{"alert": "Down", "expr": "up == 0"}]}]},
    ),
    manifest(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        {
            "parentRefs": [{"name": "gateway"}],
            "rules": [{"timeouts": {"request": "1h"}, "backendRefs": [{"name": "a", "port": 80}]}],
        },
    ),
    manifest(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        {
            "selector": SELECTOR,
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    ),
    manifest(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": {}}}},
    ),
    manifest(
        "ray.io/v1",
        "RayJob",
        {"entrypoint": "true", "rayClusterSpec": {"headGroupSpec": {"template": {"spec": {}}}}},
    ),
]
# For each kind, where in the spec a bad value stands, and which.
WRONG_VALUES = {
    "ScaledObject": (("minReplicaCount",), "one"),
    "ServiceMonitor": (("endpoints", 0, "interval"), "15 seconds"),
    "PodMonitor": (("podMetricsEndpoints",), "http"),
    "PrometheusRule": (("groups", 0, "rules", 0, "expr"), {"up": 0}),
    "HTTPRoute": (("rules", 0, "timeouts", "request"), "one hour"),
    "InferencePool": (("endpointPickerRef", "failureMode"), "FailClosed"),
    "LeaderWorkerSet": (("leaderWorkerTemplate", "restartPolicy"), "Always"),
    "RayJob": (("backoffLimit",), "often"),
}
MISTYPED_FIELDS = {
    "ScaledObject": ("triggers", 0, "metricTypes"),
    "ServiceMonitor": ("endpoints", 0, "scrapeInterval"),
    "PodMonitor": ("podMetricsEndpoints", 0, "scrapeInterval"),
    "PrometheusRule": ("groups", 0, "rules", 0, "expression"),
    "HTTPRoute": ("rules", 0, "timeouts", "connection"),
    "InferencePool": ("endpointPickerRef", "portNumber"),
    "LeaderWorkerSet": ("leaderWorkerTemplate", "sizes"),
    "RayJob": ("rayClusterSpec", "headGroupSpec", "rayStartParameters"),
}
# Where a field stands that must be there; of all other kinds it is the spec.
NEEDED_FIELDS = {
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate"),
    "RayJob": ("spec", "rayClusterSpec", "headGroupSpec"),
}


def changed(manifest: Manifest, path: tuple[str | int, ...], value: Any) -> Manifest:
    """A copy whose spec has `value` at `path`."""
    result = copy.deepcopy(manifest)
    place = result["spec"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def without(manifest: Manifest, path: tuple[str, ...]) -> Manifest:
    """A copy that has nothing at `path`."""
    result = copy.deepcopy(manifest)
    place = result
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return result


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], list[str]]:
    """What is said of every manifest, asked at once, by its kind and what was done to it."""
    manifests: dict[tuple[str, str], Manifest] = {}
    for good in GOOD:
        kind = good["kind"]
        manifests[kind, "good"] = good
        manifests[kind, "wrong value"] = changed(good, *WRONG_VALUES[kind])
        manifests[kind, "mistyped field"] = changed(good, MISTYPED_FIELDS[kind], "1s")
        manifests[kind, "missing field"] = without(good, NEEDED_FIELDS.get(kind, ("spec",)))
    return dict(zip(manifests, custom_resources.errors([*manifests.values()]), strict=True))


@pytest.mark.parametrize("kind", [good["kind"] for good in GOOD])
def test_a_bad_one_is_refused(kind: str, found: dict[tuple[str, str], list[str]]) -> None:
    assert found[kind, "good"] == []
    value, field = WRONG_VALUES[kind][0][-1], MISTYPED_FIELDS[kind][-1]
    assert any(str(value) in error for error in found[kind, "wrong value"])
    assert any(str(field) in error for error in found[kind, "mistyped field"])
    needed = NEEDED_FIELDS.get(kind, ("spec",))[-1]
    assert any(needed in error for error in found[kind, "missing field"])
