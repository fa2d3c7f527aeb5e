"""The PromQL expressions of the chart: those of rules, of the autoscalers and of the dashboard."""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.deploy.helm import Manifest

# What Grafana puts in place of its variables: everything, and a range of some scrapes.
_VARIABLES = {"$namespace": ".*", "$model": ".*", "$__rate_interval": "1m"}
_COMPARISON = re.compile(r" (>|<|>=|<=|==|!=) (?=[\d(\"a-z])")


def rule_groups(manifests: list[Manifest]) -> dict[str, Any]:
    """The rule file that the operator would make of the PrometheusRule."""
    (rule,) = of_kind(manifests, "PrometheusRule")
    return {"groups": rule["spec"]["groups"]}


def alerts(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """The rules of all groups."""
    return [rule for group in rule_groups(manifests)["groups"] for rule in group["rules"]]


def scaling_queries(manifests: list[Manifest]) -> list[str]:
    """What KEDA asks Prometheus."""
    return [
        trigger["metadata"]["query"]
        for scaled in of_kind(manifests, "ScaledObject")
        for trigger in scaled["spec"]["triggers"]
    ]


def dashboard(manifests: list[Manifest]) -> dict[str, Any]:
    """The board in the ConfigMap that Grafana's sidecar reads."""
    (board,) = (
        text
        for config in of_kind(manifests, "ConfigMap")
        for file, text in config["data"].items()
        if file == "penstock.json"
    )
    return json.loads(board)


def panel_queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The title of each panel, with each of its expressions as Grafana would send it."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in _VARIABLES.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


def without_threshold(expression: str) -> str:
    """The expression with its comparisons as 0 or 1: it has a series whether or not it holds."""
    return _COMPARISON.sub(r" \1 bool ", expression)


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """The manifests of a kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]
