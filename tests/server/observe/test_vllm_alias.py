"""`--metrics-alias vllm`, against a table of vLLM's own metrics."""

import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.patience import wait_until
from tests.server.api.test_ops import metric
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "vllm_metrics.toml").read_text()
)
PARTS = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",)}


@pytest.fixture(scope="module")
def aliased(module_builder: DeploymentBuilder) -> Deployment:
    """A generator and an embedder, with the alias."""
    writer, embedder, _ = module_builder.models()
    return module_builder.open(server_config(writer, embedder, metrics_alias="vllm"))


def page(deployment: Deployment) -> str:
    return deployment.http.get("/metrics").text


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_names_types_and_labels_are_vllms(aliased: Deployment) -> None:
    wait_until(lambda: "vllm:num_requests_running{" in page(aliased))
    text = page(aliased)
    types = dict(re.findall(r"(?m)^# TYPE vllm:(\S+) (\w+)$", text))
    assert types == {name: row["type"] for name, row in TABLE.items()}
    shown: dict[str, set[frozenset[str]]] = {}
    for sample in samples(text):
        shown.setdefault(sample.name, set()).add(frozenset(sample.labels) - {"le"})
    for name, row in TABLE.items():
        labels = frozenset(row.get("labels", ("engine", "model_name")))
        for part in PARTS[row["type"]]:
            assert shown[f"vllm:{name}{part}"] == {labels}, name


def test_they_say_what_our_own_say(aliased: Deployment) -> None:
    aliased.engines["writer"].script.tokens = [40, 41, 1]
    aliased.post("/v1/completions", {"prompt": "Hello", "n": 2})
    aliased.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1})
    aliased.post("/v1/embeddings", {"input": ["a", "b"]})
    aliased.engines["writer"].script.held = True
    aliased.post("/v1/completions", {"prompt": "Hello", "timeout": 0.05})
    writer = {"model_name": "writer", "engine": "0"}
    embedder = {"model_name": "embedder", "engine": "1"}
    own, done = {"model": "writer", "reason": "timeout"}, "vllm:request_success_total"
    wait_until(lambda: metric(aliased, "penstock_rows_total", **own) == 1)
    value = partial(metric, aliased)
    assert value(done, **embedder, finished_reason="stop") == 2
    assert value(done, **writer, finished_reason="stop") == 2
    assert value(done, **writer, finished_reason="length") == 1
    assert value(done, **writer, finished_reason="abort") == 1
    assert value("vllm:prompt_tokens_total", **writer) == 15
    assert value("vllm:generation_tokens_total", **writer) == 2 * 3 + 1
    assert value("vllm:time_to_first_token_seconds_count", **writer) == 2
    assert value("vllm:request_queue_time_seconds_sum", **embedder) == 0.25
    assert value("vllm:request_inference_time_seconds_sum", **embedder) == 0.5
    assert value("vllm:request_prompt_tokens_count", **embedder) == 1
    used, blocks = 1, 16  # of the fake engine's heartbeat
    for name in ("kv", "gpu"):
        assert value(f"vllm:{name}_cache_usage_perc", **writer) == used / blocks
    config = {"block_size": "16", "num_gpu_blocks": str(blocks), "engine": "0"}
    assert value("vllm:cache_config_info", **config) == 1


def test_without_the_flag_there_is_none_of_them(shared_deployment: Deployment) -> None:
    assert "vllm:" not in page(shared_deployment)
