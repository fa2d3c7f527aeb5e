"""After a load, a real Prometheus has a series for everything that rules, autoscalers and the
dashboard ask."""

import math
import re

from tests.deploy.helm import Manifest
from tests.deploy.monitoring.expressions import (
    alerts,
    dashboard,
    panel_queries,
    scaling_queries,
    without_threshold,
)
from tests.deploy.monitoring.load import EMBEDDER, GENERATOR
from tests.deploy.monitoring.prometheus import Prometheus


def has_value(prometheus: Prometheus, expression: str) -> bool:
    """Whether the expression has a series, with a number."""
    return any(not math.isnan(float(s["value"][1])) for s in prometheus.query(expression))


def test_the_daemon_is_scraped_under_the_chart_s_labels(prometheus: Prometheus) -> None:
    (target,) = prometheus.targets()
    assert target["health"] == "up", target["lastError"]
    assert target["labels"]["job"] == "llm-penstock"
    assert target["labels"]["namespace"] == "serving"
    # Displaced by the operator's label of that name if the monitor did not drop it.
    (answers,) = prometheus.query(
        'count by (endpoint) (penstock_http_requests_total{endpoint="/v1/rerank"})'
    )
    assert answers["metric"] == {"endpoint": "/v1/rerank"}


def test_alerts_have_series(prometheus: Prometheus, manifests: list[Manifest]) -> None:
    for rule in alerts(manifests):
        expression = without_threshold(rule["expr"])
        assert " bool " in expression, rule["expr"]
        assert prometheus.query(expression), rule["alert"]


def test_a_healthy_daemon_raises_no_alert_about_engines(
    prometheus: Prometheus, manifests: list[Manifest]
) -> None:
    for rule in alerts(manifests):
        if rule["alert"] not in ("PenstockErrorRate", "PenstockRefusals"):
            assert prometheus.query(rule["expr"]) == [], rule["alert"]


def test_panels_have_values(prometheus: Prometheus, manifests: list[Manifest]) -> None:
    queries = list(panel_queries(dashboard(manifests)))
    assert len(queries) > 30
    empty = [each for each in queries if not has_value(prometheus, each[1])]
    assert empty == []


def test_variables_of_the_dashboard_have_values(
    prometheus: Prometheus, manifests: list[Manifest]
) -> None:
    found: dict[str, set[str]] = {}
    for variable in dashboard(manifests)["templating"]["list"]:
        if variable["type"] == "query":
            call = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert call, variable["definition"]
            metric, label = call.groups()
            expression = metric.replace("$namespace", ".*")
            series = prometheus.query(f"count by ({label}) ({expression})")
            found[variable["name"]] = {each["metric"][label] for each in series}
    assert found == {"namespace": {"serving"}, "model": {GENERATOR, EMBEDDER}}


def test_autoscalers_see_rows(prometheus: Prometheus, manifests: list[Manifest]) -> None:
    (query,) = scaling_queries(manifests)
    assert prometheus.value(query) == 0  # all is answered
    over_time = re.sub(r"\((penstock_\w+\{.*?\})\)", r"(max_over_time(\1[10m]))", query)
    assert prometheus.value(over_time) > 1  # while texts came
