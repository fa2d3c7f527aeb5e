"""Values that could not work are refused by a sentence that names them."""

from typing import Any

import pytest

from tests.deploy.helm import Helm3, Helm4, HelmError

CHAT = {"name": "chat", "model": "/models/chat"}
EMBEDDER = {"name": "embedder", "model": "/models/embedder"}
FROM_HUB = {"name": "chat", "model": "acme/chat"}
KEDA = {"enabled": True, "prometheus": {"serverAddress": "http://prometheus"}}

# What is wrong: the values, and what the message says of them.
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a wrong type": ({"replicas": "two"}, ("replicas", "string", "integer")),
    "an unknown key": ({"server": {"prot": 80}}, ("server", "prot")),
    "an unknown key of a model": ({"models": [CHAT | {"gpu": 1}]}, ("models", "gpu")),
    "a model without a name": ({"models": [{"model": "/models/chat"}]}, ("models", "name")),
    "no models, one each": ({"layout": "perModel"}, ("layout is perModel", "models is empty")),
    "grace below drain": (
        {"server": {"drainSeconds": 60}, "terminationGracePeriodSeconds": 60},
        ("terminationGracePeriodSeconds is 60", "server.drainSeconds", "80"),
    ),
    "both autoscalers": (
        {"autoscaling": {"keda": KEDA, "hpa": {"enabled": True}}},
        ("autoscaling.keda.enabled", "autoscaling.hpa.enabled"),
    ),
    "autoscaling upside down": (
        {"autoscaling": {"keda": KEDA, "min": 5, "max": 4}},
        ("autoscaling.min is 5", "autoscaling.max", "4"),
    ),
    "KEDA without Prometheus": (
        {"autoscaling": {"keda": {"enabled": True}}},
        ("autoscaling.keda.prometheus.serverAddress",),
    ),
    "an HPA without a metric": (
        {"autoscaling": {"hpa": {"enabled": True, "rowsMetric": ""}}},
        ("autoscaling.hpa.rowsMetric", "autoscaling.hpa.cpuUtilization"),
    ),
    "no GPU on cuda": ({"device": "cuda", "gpus": 0}, ("gpus is 0", "device is cuda")),
    "fewer GPUs than stages": (
        {
            "device": "cuda",
            "models": [CHAT | {"options": {"device": "cuda", "pipeline_stages": 2}}],
        },
        ("gpus is 1", "chat needs 2", "pipeline_stages"),
    ),
    "a model on cuda, pods on cpu": (
        {"models": [CHAT | {"options": {"device": "cuda"}}]},
        ("device is cpu", "chat"),
    ),
    "GPUs among the resources": (
        {"device": "cuda", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        ("nvidia.com/gpu", "set gpus"),
    ),
    "an empty repository": ({"image": {"repository": ""}}, ("image", "repository")),
    "latest, not pulled again": (
        {"image": {"tag": "latest"}},
        ("image.tag is latest", "image.pullPolicy is IfNotPresent"),
    ),
    "a digest of another kind": ({"image": {"digest": "md5:0"}}, ("image", "digest")),
    "two models of one name": ({"models": [CHAT, CHAT]}, ("models[1]", '"chat"', "models[0]")),
    "two models of one object's name": (
        {"layout": "perModel", "models": [CHAT, CHAT | {"name": "Chat"}]},
        ("models[1].name", '"Chat"', "models[0]"),
    ),
    "a model's own in a shared daemon": (
        {"models": [CHAT | {"replicas": 2}]},
        ("models[0].replicas", "layout is shared"),
    ),
    "a claim of one node with surge": (
        {"storage": {"existingClaim": "models"}, "models": [CHAT]},
        ("ReadWriteOnce", "strategy.maxSurge is 1", "Recreate"),
    ),
    "a claim of one node for several pods": (
        {
            "storage": {"existingClaim": "models"},
            "models": [CHAT],
            "strategy": {"type": "Recreate"},
            "replicas": 2,
        },
        ("ReadWriteOnce", "replicas is 2"),
    ),
    "a claim of one node for several models": (
        {
            "layout": "perModel",
            "models": [CHAT, EMBEDDER],
            "storage": {"create": True},
            "strategy": {"type": "Recreate"},
        },
        ("ReadWriteOnce", "layout is perModel", "2"),
    ),
    "two claims": (
        {"storage": {"create": True, "existingClaim": "models"}},
        ("storage.create", "storage.existingClaim is models"),
    ),
    "prefetch to nowhere": (
        {"models": [FROM_HUB], "storage": {"prefetch": {"enabled": True}}},
        ("storage.prefetch.enabled", "storage.create", "storage.existingClaim"),
    ),
    "prefetch of nothing": (
        {
            "models": [CHAT],
            "storage": {"create": True, "prefetch": {"enabled": True}},
            "strategy": {"type": "Recreate"},
        },
        ("storage.prefetch.enabled", "hub id"),
    ),
    "prefetch offline": (
        {
            "models": [FROM_HUB],
            "storage": {"create": True, "prefetch": {"enabled": True}},
            "strategy": {"type": "Recreate"},
            "hub": {"offline": True},
        },
        ("storage.prefetch.enabled", "hub.offline"),
    ),
    "prefetch to what is only read": (
        {
            "models": [FROM_HUB],
            "storage": {
                "existingClaim": "models",
                "accessModes": ["ReadOnlyMany"],
                "prefetch": {"enabled": True},
            },
        },
        ("storage.prefetch.enabled", "storage.accessModes is ReadOnlyMany"),
    ),
    "a download to what is only read": (
        {
            "models": [FROM_HUB],
            "storage": {"existingClaim": "models", "accessModes": ["ReadOnlyMany"]},
        },
        ("storage.accessModes is ReadOnlyMany", "acme/chat", "hub.offline"),
    ),
    "offline, on the hub": (
        {"models": [FROM_HUB], "hub": {"offline": True}},
        ("hub.offline is true", "acme/chat", "storage.existingClaim"),
    ),
    "no pod may go": (
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": 0}},
        ("podDisruptionBudget.maxUnavailable is 0",),
    ),
    "more pods available than there are": (
        {
            "replicas": 2,
            "podDisruptionBudget": {"enabled": True, "minAvailable": 2, "maxUnavailable": None},
        },
        ("podDisruptionBudget.minAvailable is 2", "2 of demo-penstock"),
    ),
    "both sides of a budget": (
        {
            "replicas": 3,
            "podDisruptionBudget": {"enabled": True, "minAvailable": 1, "maxUnavailable": 1},
        },
        ("podDisruptionBudget.minAvailable", "podDisruptionBudget.maxUnavailable", "both"),
    ),
    "a rollout that cannot move": (
        {"strategy": {"maxUnavailable": 0, "maxSurge": 0}},
        ("strategy.maxUnavailable", "strategy.maxSurge", "both 0"),
    ),
    "a port of nodes on a cluster's IP": (
        {"service": {"nodePort": 30080}},
        ("service.nodePort is 30080", "ClusterIP"),
    ),
    "a route without a Gateway": ({"httpRoute": {"enabled": True}}, ("httpRoute.parentRefs",)),
    "models that no route tells apart": (
        {"layout": "perModel", "models": [CHAT, EMBEDDER], "ingress": {"enabled": True}},
        ("demo-penstock-chat", "demo-penstock-embedder", "host", "path"),
    ),
    "both monitors": (
        {"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        ("monitoring.serviceMonitor.enabled", "monitoring.podMonitor.enabled"),
    ),
    "metrics that Prometheus has no key for": (
        {
            "server": {"options": {"metrics_key": True}},
            "monitoring": {"podMonitor": {"enabled": True}},
        },
        ("server.options.metrics_key", "monitoring.scrape.apiKey.secret"),
    ),
    "an alert that never fires": (
        {
            "server": {"stallSeconds": 10},
            "monitoring": {"prometheusRule": {"enabled": True}},
        },
        ("monitoring.prometheusRule.alerts.engineStalled.seconds is 20", "server.stallSeconds, 10"),
    ),
}


@pytest.mark.parametrize("why", BAD)
def test_bad_values_are_refused_by_name(why: str, helm3: Helm3, helm4: Helm4) -> None:
    values, words = BAD[why]
    for helm in (helm3, helm4):
        with pytest.raises(HelmError) as refused:
            helm.template(values)
        assert [word for word in words if word not in str(refused.value)] == []


# What is just good enough.
GOOD: dict[str, dict[str, Any]] = {
    "grace of drain and its margin": {
        "server": {"drainSeconds": 60},
        "terminationGracePeriodSeconds": 80,
    },
    "latest, pulled always": {"image": {"tag": "latest", "pullPolicy": "Always"}},
    "a claim of one node, replaced in place": {
        "storage": {"existingClaim": "models"},
        "models": [CHAT],
        "strategy": {"type": "Recreate"},
    },
    "a claim of many nodes with surge": {
        "storage": {"existingClaim": "models", "accessModes": ["ReadOnlyMany"]},
        "models": [CHAT],
    },
    "one of two pods may go": {
        "replicas": 2,
        "podDisruptionBudget": {"enabled": True, "minAvailable": 1, "maxUnavailable": None},
    },
    "as many GPUs as stages": {
        "device": "cuda",
        "gpus": 2,
        "models": [CHAT | {"options": {"device": "cuda", "pipeline_stages": 2}}],
    },
    "no GPU on a CPU": {"gpus": 0},
}


@pytest.mark.parametrize("why", GOOD)
def test_what_just_works_is_not(why: str, helm3: Helm3, helm4: Helm4) -> None:
    assert helm3.template(GOOD[why]) == helm4.template(GOOD[why])
