"""What the engines report of themselves, as of their last heartbeats.

Every API process has the same heartbeats: each shows them as they are, and none adds them up.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from engine_core.client.engine_client import EngineClient
from engine_core.messages import (
    ENGINE_METRICS,
    STAGE_METRICS,
    STEP_SIZES,
    Beat,
    EngineMetric,
    metric_values,
    stage_values,
)
from server.metrics.families import cumulative
from server.settings.server_config import ServedModel

_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class MeteredModel(Protocol):
    """What is shown of a model."""

    @property
    def name(self) -> str:
        """Its first name, as in answers."""
        ...

    @property
    def served(self) -> ServedModel: ...

    @property
    def client(self) -> EngineClient: ...


def engine_metrics(models: Sequence[MeteredModel]) -> Iterator[Metric]:
    """The metrics of every engine that has sent a heartbeat; of one that is dead only counters."""
    up = GaugeMetricFamily("penstock_engine_up", "1: ready and alive.", labels=["model"])
    for model in models:
        up.add_metric([model.name], float(model.client.info is not None and not model.client.dead))
    yield up
    beats = [(model, beat) for model in models if (beat := model.client.beat) is not None]
    yield from _of_beats(beats)
    yield from _of_stages(beats)
    yield _heartbeat_age(beats)
    yield _kv_usage(beats)
    yield _step_sizes(beats)


def add_admitted(in_flight: Metric, models: Sequence[MeteredModel]) -> None:
    """Add the rows and tokens that engines have admitted to the requests `in_flight`."""
    beats = [model.client.beat for model in models if not model.client.dead]
    for what in ("rows", "tokens"):
        admitted = sum(getattr(beat, f"admitted_{what}") for beat in beats if beat is not None)
        in_flight.add_sample(in_flight.name, {"what": what}, admitted)


_Beats = Iterable[tuple[MeteredModel, Beat]]


def _of_beats(beats: _Beats) -> Sequence[Metric]:
    families = [_family(metric, "model") for metric in ENGINE_METRICS]
    for model, beat in beats:
        for family, value in zip(families, metric_values(beat), strict=True):
            if family.type == "counter" or not model.client.dead:
                family.add_metric([model.name], value)
    return families


def _of_stages(beats: _Beats) -> Sequence[Metric]:
    families = [_family(metric, "model", "stage") for metric in STAGE_METRICS]
    for model, beat in beats:
        for number, stage in enumerate(beat.stages):
            for family, value in zip(families, stage_values(stage), strict=True):
                family.add_metric([model.name, str(number)], value)
    return families


def _family(metric: EngineMetric, *labels: str) -> GaugeMetricFamily | CounterMetricFamily:
    return _FAMILIES[metric.kind](f"penstock_engine_{metric.name}", metric.text, labels=labels)


def _heartbeat_age(beats: _Beats) -> Metric:
    """One that stands still sends none."""
    name = "penstock_engine_heartbeat_age_seconds"
    ages = GaugeMetricFamily(name, "Time since the engine's last heartbeat.", labels=["model"])
    now = time.monotonic()
    for model, _ in beats:
        ages.add_metric([model.name], now - model.client.beat_at)
    return ages


def _kv_usage(beats: _Beats) -> Metric:
    name = "penstock_engine_kv_usage_ratio"
    usage = GaugeMetricFamily(name, "Share of the KV blocks that are in use.", labels=["model"])
    for model, beat in beats:
        if not model.client.dead:
            used, total = beat.usage.kv_blocks_used, beat.usage.kv_blocks_total
            usage.add_metric([model.name], used / max(total, 1))
    return usage


def _step_sizes(beats: _Beats) -> Metric:
    name = "penstock_engine_tokens_per_step"
    sizes = HistogramMetricFamily(name, "Tokens that a step computes.", labels=["model"])
    for model, beat in beats:
        buckets = cumulative(STEP_SIZES, beat.step_sizes)
        sizes.add_metric([model.name], buckets, beat.step_tokens)
    return sizes
