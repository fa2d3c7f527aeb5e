"""Autoscalers of the rendered chart: who scales, and between which bounds."""

from typing import Any

import pytest

from tests.deploy.helm import Helm3
from tests.deploy.monitoring.expressions import of_kind, scaling_queries

KEDA = {"enabled": True, "prometheus": {"serverAddress": "http://prometheus:9090"}}
HPA = {"enabled": True}
MODELS = [
    {"name": "chat", "model": "/m/chat", "autoscaling": {"max": 2, "rowsPerReplica": 8}},
    {"name": "Acme/Embedder", "model": "/m/embedder"},
]


def autoscaled(**autoscaling: Any) -> dict[str, Any]:
    return {"layout": "perModel", "models": MODELS, "autoscaling": autoscaling}


@pytest.mark.parametrize("autoscaling", [{"keda": KEDA}, {"hpa": HPA}], ids=["keda", "hpa"])
def test_an_autoscaled_deployment_has_no_replicas(
    helm3: Helm3, autoscaling: dict[str, Any]
) -> None:
    fixed = of_kind(helm3.template(autoscaled()), "Deployment")
    assert [each["spec"]["replicas"] for each in fixed] == [1, 1]
    scaled = of_kind(helm3.template(autoscaled(**autoscaling)), "Deployment")
    assert ["replicas" in each["spec"] for each in scaled] == [False, False]


def test_keda_scales_each_model_by_its_own_rows(helm3: Helm3) -> None:
    manifests = helm3.template(autoscaled(keda=KEDA))
    embedder, chat = of_kind(manifests, "ScaledObject")
    deployments = {each["metadata"]["name"] for each in of_kind(manifests, "Deployment")}
    targets = [each["spec"]["scaleTargetRef"]["name"] for each in (embedder, chat)]
    assert targets == ["demo-penstock-acme-embedder", "demo-penstock-chat"]
    assert set(targets) == deployments
    assert [each["spec"]["maxReplicaCount"] for each in (embedder, chat)] == [4, 2]
    (of_embedder,), (of_chat,) = (each["spec"]["triggers"] for each in (embedder, chat))
    assert (of_embedder["metadata"]["threshold"], of_chat["metadata"]["threshold"]) == ("32", "8")
    assert [query.count('model="Acme/Embedder"') for query in scaling_queries(manifests)] == [2, 0]


def test_an_hpa_goes_by_the_adapter_s_rows(helm3: Helm3) -> None:
    embedder, chat = of_kind(helm3.template(autoscaled(hpa=HPA)), "HorizontalPodAutoscaler")
    assert (embedder["spec"]["maxReplicas"], chat["spec"]["maxReplicas"]) == (4, 2)
    (metric,) = chat["spec"]["metrics"]
    assert metric["pods"] == {
        "metric": {"name": "penstock_rows"},
        "target": {"type": "AverageValue", "averageValue": "8"},
    }
