"""Reports of the engines on themselves, as of their last heartbeats, which all API processes
have."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.messages import (
    ENGINE_METRICS,
    STAGE_METRICS,
    STEP_SIZES,
    EngineMetric,
    metric_values,
    stage_values,
)
from server.observe.processes import copy_label
from server.observe.shared_cells import cumulative
from server.settings.settings import ServedModel
from workers.contract.config import ExecutionConfig

_LABELS: Final = ("model", "copy")
_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


ServedEngines = Sequence[tuple[ExecutionConfig, EngineClient]]
"""The engines of the daemon, each with this process's client of it."""


def served_engines(models: Iterable[tuple[ServedModel, Engines]]) -> ServedEngines:
    return [
        (config.execution, client)
        for served, clients in models
        for config, client in zip(served.engines, clients, strict=True)
    ]


def engine_metrics(engines: ServedEngines) -> Iterator[Metric]:
    """The metrics of every engine that has sent a heartbeat. Of one that is dead only counters."""
    up = _gauge("up", "1: ready and alive.")
    age = _gauge("heartbeat_age_seconds", "Time since the engine's last heartbeat.")
    usage = _gauge("kv_usage_ratio", "Share of the KV blocks that are in use.")
    name, text = "penstock_engine_tokens_per_step", "Tokens that a step computes."
    sizes = HistogramMetricFamily(name, text, labels=_LABELS)
    of_engines = [_family(metric, *_LABELS) for metric in ENGINE_METRICS]
    of_stages = [_family(metric, "model", "stage", "copy") for metric in STAGE_METRICS]
    now = time.monotonic()
    for execution, client in engines:
        copy, beat = copy_label(execution.copy), client.beat
        model = [execution.name, *copy]
        up.add_metric(model, float(client.is_ready))
        if beat is None:
            continue
        for family, value in zip(of_engines, metric_values(beat), strict=True):
            if family.type == "counter" or not client.dead:
                family.add_metric(model, value)
        for number, stage in enumerate(beat.stages):
            for family, value in zip(of_stages, stage_values(stage), strict=True):
                family.add_metric([execution.name, str(number), *copy], value)
        # An engine that stands still sends none.
        age.add_metric(model, now - client.beat_at)
        if not client.dead:
            used, total = beat.usage.kv_blocks_used, beat.usage.kv_blocks_total
            usage.add_metric(model, used / max(total, 1))
        sizes.add_metric(model, cumulative(STEP_SIZES, beat.step_sizes), beat.step_tokens)
    yield from (up, *of_engines, *of_stages, age, usage, sizes)


def add_admitted(in_flight: Metric, engines: ServedEngines) -> None:
    """Add the rows and tokens that engines have admitted to the requests `in_flight`."""
    beats = [client.beat for _, client in engines if not client.dead]
    for what in ("rows", "tokens"):
        admitted = sum(getattr(beat, f"admitted_{what}") for beat in beats if beat is not None)
        in_flight.add_sample(in_flight.name, {"what": what}, admitted)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_engine_{name}", text, labels=_LABELS)


def _family(metric: EngineMetric, *labels: str) -> GaugeMetricFamily | CounterMetricFamily:
    return _FAMILIES[metric.kind](f"penstock_engine_{metric.name}", metric.text, labels=labels)
