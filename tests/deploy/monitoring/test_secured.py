"""A daemon behind TLS and a key, with vLLM's names too, scraped as the chart's PodMonitor says."""

from collections.abc import Generator

import pytest

from tests.deploy.helm import Helm3
from tests.deploy.monitoring.alert_scenarios import NAMESPACE, RELEASE
from tests.deploy.monitoring.expressions import of_kind
from tests.deploy.monitoring.prometheus import Prometheus, running_prometheus
from tests.deploy.monitoring.scrape_job import scrape_job
from tests.e2e.daemon import running
from tests.patience import wait_until
from tests.server.certificates import make_certificate

VALUES = {
    "tls": {"existingSecret": "penstock-tls"},
    "auth": {"existingSecret": "penstock-keys"},
    "monitoring": {"podMonitor": {"enabled": True}},
}

# What routers, autoscalers and boards that were made for vLLM ask.
RECIPES = (
    'sum(vllm:num_requests_waiting{model_name="penstock-demo"})',
    'sum(vllm:num_requests_running{model_name="penstock-demo"})',
    "avg(vllm:kv_cache_usage_perc)",
    "avg(vllm:gpu_cache_usage_perc)",
    "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m]))",
    "sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m]))",
    "sum by (le) (rate(vllm:time_per_output_token_seconds_bucket[1m]))",
    "sum(rate(vllm:generation_tokens_total[1m]))",
    "sum(rate(vllm:prompt_tokens_total[1m]))",
    "vllm:cache_config_info",
)


@pytest.fixture(scope="module")
def secured(helm3: Helm3, tmp_path_factory: pytest.TempPathFactory) -> Generator[Prometheus]:
    folder = tmp_path_factory.mktemp("secured")
    manifests = helm3.template(VALUES, release=RELEASE, namespace=NAMESPACE)
    (monitor,) = of_kind(manifests, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "penstock-tls", "key": "ca.crt"}
    cert, key = make_certificate(folder, hosts=("localhost", endpoint["tlsConfig"]["serverName"]))
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--api-key", "secret")
    with running(*flags, "--metrics-alias", "vllm", "--threads", "1") as daemon:
        job = scrape_job(monitor, daemon.url.removeprefix("https://"), ca_file=str(cert))
        with running_prometheus(folder, [job]) as server:
            wait_until(lambda: server.query("count_over_time(vllm:num_requests_running[1m]) > 2"))
            yield server


def test_a_pod_monitor_scrapes_over_tls(secured: Prometheus) -> None:
    (target,) = secured.targets()
    assert (target["health"], target["lastError"]) == ("up", "")
    assert target["scrapeUrl"].startswith("https://")
    assert secured.value('count(penstock_engine_up{job="llm-penstock", namespace="serving"})') == 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_for_vllm_has_series(secured: Prometheus, recipe: str) -> None:
    assert secured.query(recipe)
