"""The guide's section on monitoring: its values render, its jobs and queries work."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import CHART, Helm3
from tests.deploy.monitoring.alert_scenarios import NAMESPACE, RELEASE
from tests.deploy.monitoring.expressions import alerts, of_kind
from tests.deploy.monitoring.prometheus import Prometheus, running_prometheus
from tests.e2e.daemon import Daemon
from tests.patience import wait_until
from tests.project.source_tree import REPOSITORY

GUIDE = REPOSITORY / "docs" / "deploy.md"
ALERT_ROW = re.compile(r"\| `(Penstock\w+)` \| `(\w+)` \|.*\| (\w+) \|")


def section() -> str:
    return GUIDE.read_text().partition("\n## Monitoring and scaling\n")[2].partition("\n## ")[0]


def examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section(), re.DOTALL)]


def example(key: str) -> dict[str, Any]:
    """The only example with this key at its top."""
    (found,) = (each for each in examples() if key in each)
    return found


def test_examples_of_values_render(helm3: Helm3) -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    values = [each for each in examples() if each.keys() <= known]
    kinds = [{manifest["kind"] for manifest in helm3.template(each)} for each in values]
    wanted = [{"ServiceMonitor", "PrometheusRule"}, {"ScaledObject"}, {"HorizontalPodAutoscaler"}]
    assert [need <= found for need, found in zip(wanted, kinds, strict=True)] == [True] * 3


def test_a_prometheus_without_operator_finds_the_release(
    scraped_daemon: Daemon, tmp_path: Path
) -> None:
    """Debian's Prometheus cannot ask Kubernetes: the labels that it would find are given to it."""
    (job,) = example("scrape_configs")["scrape_configs"]
    del job["kubernetes_sd_configs"]
    address = scraped_daemon.url.removeprefix("http://")
    job["static_configs"] = [
        {"targets": [address], "labels": _pod(RELEASE, "http")},
        {"targets": [address], "labels": _pod("other", "http")},
        {"targets": [address], "labels": _pod(RELEASE, "debug")},
    ]
    with running_prometheus(tmp_path, [job]) as server:
        wait_until(lambda: server.query("up == 1"))
        (target,) = server.targets()
    labels = {"namespace": NAMESPACE, "pod": "llm-0", "job": "llm-penstock", "instance": address}
    assert target["labels"] == labels


def _pod(release: str, port: str) -> dict[str, str]:
    return {
        "__meta_kubernetes_namespace": NAMESPACE,
        "__meta_kubernetes_pod_name": f"{release}-0",
        "__meta_kubernetes_pod_label_app_kubernetes_io_instance": release,
        "__meta_kubernetes_pod_container_port_name": port,
    }


@pytest.mark.parametrize("pods", ["llm-penstock-0", "llm-penstock-0|llm-penstock-1"])
def test_the_adapter_s_query_counts_the_rows_of_pods(prometheus: Prometheus, pods: str) -> None:
    (rule,) = example("rules")["rules"]["custom"]
    assert prometheus.query(rule["seriesQuery"])
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    matchers = f'namespace="serving",pod=~"{pods}"'
    (series,) = prometheus.query(query.replace("<<.LabelMatchers>>", matchers))
    assert series["metric"] == {"pod": f"{RELEASE}-penstock-0"}


def test_the_hpa_reads_the_adapter_s_metric(helm3: Helm3) -> None:
    (rule,) = example("rules")["rules"]["custom"]
    (hpa,) = of_kind(
        helm3.template({"autoscaling": {"hpa": {"enabled": True}}}), "HorizontalPodAutoscaler"
    )
    assert hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]


def test_every_alert_is_in_the_table(manifests: list[dict[str, Any]]) -> None:
    settings = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]
    rows = ALERT_ROW.findall(section())
    assert [value for _, value, _ in rows] == list(settings["alerts"])
    told = {name: severity for name, _, severity in rows}
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in alerts(manifests)}
