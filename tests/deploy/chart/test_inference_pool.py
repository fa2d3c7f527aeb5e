"""An endpoint picker finds its metrics in a daemon that the chart configures for an InferencePool.

llm-d's picker (llm-d-router v0.10.0, `extractor/metrics`) knows families by name, and takes one
sample of each: of several without timestamps the first.
"""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from server.demo import GENERATOR_NAME, demo_models
from tests.deploy.helm import Helm3
from tests.e2e.daemon import Daemon, metric, running
from tests.patience import PATIENCE, wait_until

LOAD = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
CACHE = "vllm:cache_config_info"
ADAPTERS = "vllm:lora_requests_info"


@pytest.fixture(scope="module")
def daemon(helm3: Helm3, tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """With the configuration of the release, which runs one sequence at a time."""
    model = {
        "name": GENERATOR_NAME,
        "model": str(demo_models()[GENERATOR_NAME]),
        "options": {"max_running": 1, "threads": 1},
    }
    release = helm3.template({"models": [model], "inferencePool": {"enabled": True}})
    (config,) = (
        each["data"]["penstock.yaml"]
        for each in release
        if each["kind"] == "ConfigMap" and "penstock.yaml" in each["data"]
    )
    folder = tmp_path_factory.mktemp("pool")
    settings = yaml.safe_load(config) | {"state_dir": "none", "host": "127.0.0.1"}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(settings))
    with running("--config", str(folder / "penstock.yaml")) as ready:
        yield ready


def families(daemon: Daemon) -> dict[str, Metric]:
    text = httpx.get(f"{daemon.url}/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def load(daemon: Daemon) -> list[float]:
    """What waits, what runs and the share of the KV cache, as the picker reads them."""
    found = families(daemon)
    return [found[name].samples[0].value for name in LOAD]


@pytest.mark.parametrize("name", [*LOAD, CACHE])
def test_a_family_is_a_gauge_with_one_sample(name: str, daemon: Daemon) -> None:
    wait_until(lambda: name in families(daemon) and families(daemon)[name].samples)
    family = families(daemon)[name]
    assert family.type == "gauge"
    assert len(family.samples) == 1


def test_the_size_of_the_prefix_cache_is_in_labels(daemon: Daemon) -> None:
    labels = families(daemon)[CACHE].samples[0].labels
    assert int(labels["block_size"]) > 0
    assert int(labels["num_gpu_blocks"]) == metric(daemon.url, "penstock_engine_kv_blocks") > 0


def test_there_are_no_adapters(daemon: Daemon) -> None:
    """No model here has any: the picker then leaves adapters out of account."""
    assert ADAPTERS not in families(daemon)


def test_load_shows(daemon: Daemon) -> None:
    body = {"model": GENERATOR_NAME, "prompt": "A file", "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(daemon.ask, "/v1/completions", **body) for _ in range(3)]
        wait_until(lambda: load(daemon)[:2] == [2, 1] and 0 < load(daemon)[2] < 1)
        for each in asked:
            each.result(PATIENCE)
    wait_until(lambda: load(daemon) == [0, 0, 0])
