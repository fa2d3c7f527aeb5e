"""What is shown of engines: ready, lost, or standing still."""

import time
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily

from engine_core.client.engine_client import EngineClient
from engine_core.messages import STEP_SIZES, Beat, StageTime, Usage
from server.observe.engine_families import (
    ServedEngines,
    add_admitted,
    engine_metrics,
    served_engines,
)
from server.service.service import Registry
from tests.server.support import served_model

STAGE = StageTime(busy_s=3.0, waiting_s=1.0, transfer_s=0.5, idle_s=0.25)
BEAT = Beat(
    usage=Usage(running=3, waiting=2, kv_blocks_used=12, kv_blocks_total=16, preemptions=4),
    stages=[STAGE, STAGE],
    steps=7,
    step_tokens=100,
    step_sizes=[5, 0, 0, 1, *[0] * (len(STEP_SIZES) - 4), 1],
    admitted_rows=6,
    admitted_tokens=80,
)


@pytest.fixture
def registry(folder: Path) -> Registry:
    model = served_model("writer", "generate", folder, "ipc://nowhere", vocab_size=400)
    return Registry.load((model,), ())


def engines(registry: Registry) -> ServedEngines:
    return served_engines((model.served, model.engines) for model in registry.models)


@pytest.fixture
def client(registry: Registry) -> EngineClient:
    return registry.models[0].engines[0]


def shown(registry: Registry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *list(sample.labels.values())[1:]): sample.value
        for metric in engine_metrics(engines(registry))
        for sample in metric.samples
    }


def test_before_the_first_heartbeat_there_is_only_that_it_is_not_up(registry: Registry) -> None:
    assert shown(registry) == {("penstock_engine_up",): 0.0}


def test_a_heartbeat(registry: Registry, client: EngineClient) -> None:
    client.beat, client.beat_at = BEAT, time.monotonic() - 60
    found = shown(registry)
    assert found["penstock_engine_running_rows",] == 3
    assert found["penstock_engine_kv_usage_ratio",] == 0.75
    assert found["penstock_engine_busy_seconds_total", "1"] == 3.0
    assert found["penstock_engine_tokens_per_step_bucket", "1.0"] == 5
    assert found["penstock_engine_tokens_per_step_bucket", "32.0"] == 6
    assert found["penstock_engine_tokens_per_step_count",] == 7
    assert found["penstock_engine_tokens_per_step_sum",] == 100
    assert 60.0 <= found["penstock_engine_heartbeat_age_seconds",] < 65.0


def test_one_that_is_lost_keeps_its_counters_and_computes_nothing(
    registry: Registry, client: EngineClient
) -> None:
    client.beat, client.dead = BEAT, True
    found = shown(registry)
    assert found["penstock_engine_up",] == 0.0
    assert found["penstock_engine_steps_total",] == 7
    assert found["penstock_engine_busy_seconds_total", "0"] == 3.0
    gauges = {name[0] for name in found if not name[0].endswith(("_total", "_bucket", "_count"))}
    assert gauges == {
        "penstock_engine_up",
        "penstock_engine_heartbeat_age_seconds",
        "penstock_engine_tokens_per_step_sum",
    }


def test_rows_and_tokens_in_flight_are_those_of_engines_that_live(
    registry: Registry, client: EngineClient
) -> None:
    def in_flight() -> dict[str, float]:
        metric = GaugeMetricFamily("in_flight", "Requests.", labels=["what"])
        metric.add_metric(["requests"], 2.0)
        add_admitted(metric, engines(registry))
        return {sample.labels["what"]: sample.value for sample in metric.samples}

    assert in_flight() == {"requests": 2, "rows": 0, "tokens": 0}
    client.beat = BEAT
    assert in_flight() == {"requests": 2, "rows": 6, "tokens": 80}
    client.dead = True
    assert in_flight() == {"requests": 2, "rows": 0, "tokens": 0}
