"""Every Prometheus name of the daemon; those of an engine are declared in
`engine_core/engine_state.py`."""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from engine_core.engine_state import (
    ENGINE_METRICS,
    STAGE_METRICS,
    EngineMetric,
    metric_values,
    stage_values,
)
from server.service.registry import Registry

_REQUEST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_NEXT_TOKEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)

_HISTOGRAMS: Final = (
    (
        "penstock_http_request_seconds",
        "From a request's headers to the end of its answer.",
        "endpoint",
        _REQUEST_S,
    ),
    (
        "penstock_time_to_first_token_seconds",
        "From a checked request to its first token.",
        "model",
        _FIRST_TOKEN_S,
    ),
    (
        "penstock_inter_token_seconds",
        "Between two updates of one request.",
        "model",
        _NEXT_TOKEN_S,
    ),
)

_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

# What is in flight changes several times a request: the gauges follow so many seconds later.
_GAUGES_DELAY_S: Final = 0.25


class GenerationMetrics(NamedTuple):
    """Counts of one model's generated texts."""

    prompt_tokens: Counter
    generated_tokens: Counter
    first_token_seconds: Histogram
    next_token_seconds: Histogram


class Metrics:
    """The counts of this process, and the page that shows them.

    With several API processes the counts live in files that the processes share (the library's
    multiprocess mode, which the supervisor switches on), and any of them shows the sum.
    """

    def __init__(self, registry: Registry, *, processes: int) -> None:
        self._page = CollectorRegistry()
        own = self._page if processes == 1 else None
        self.requests = Counter(
            "penstock_http_requests",
            "Answers by endpoint and status (499: the client left).",
            ["endpoint", "status"],
            registry=own,
        )
        self.prompt_tokens = Counter(
            "penstock_prompt_tokens", "Tokens of accepted inputs.", ["model"], registry=own
        )
        self.generated_tokens = Counter(
            "penstock_generated_tokens", "Tokens of continuations.", ["model"], registry=own
        )
        self.request_seconds, self.first_token_seconds, self.next_token_seconds = (
            Histogram(name, text, [label], buckets=buckets, registry=own)
            for name, text, label, buckets in _HISTOGRAMS
        )
        in_flight = Gauge(
            "penstock_in_flight",
            "What has been admitted and not yet answered.",
            ["what"],
            registry=own,
            multiprocess_mode="livesum",
        )
        self._gauges = [in_flight.labels(what) for what in ("requests", "rows", "tokens")]
        self._in_flight = (0, 0, 0)
        self._gauges_timer: asyncio.TimerHandle | None = None
        # Looking labels up takes longer than counting.
        self._of_model: dict[str, GenerationMetrics] = {}
        self._of_answer: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._page.register(_EngineCollector(registry))
        if own is None:
            MultiProcessCollector(self._page)

    def generation_metrics(self, model: str) -> GenerationMetrics:
        """The metrics of one model."""
        found = self._of_model.get(model)
        if found is None:
            found = self._of_model[model] = GenerationMetrics(
                self.prompt_tokens.labels(model),
                self.generated_tokens.labels(model),
                self.first_token_seconds.labels(model),
                self.next_token_seconds.labels(model),
            )
        return found

    def set_in_flight(self, requests: int, rows: int, tokens: int) -> None:
        """So much is in flight from now on. The gauges follow within `_GAUGES_DELAY_S`."""
        self._in_flight = (requests, rows, tokens)
        if self._gauges_timer is None:
            self._gauges_timer = asyncio.get_running_loop().call_later(
                _GAUGES_DELAY_S, self._on_timer
            )

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """A request has had its answer."""
        found = self._of_answer.get((endpoint, status))
        if found is None:
            found = self.requests.labels(endpoint, status), self.request_seconds.labels(endpoint)
            self._of_answer[endpoint, status] = found
        answers, latency = found
        answers.inc()
        latency.observe(seconds)

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        self._set_gauges()
        return generate_latest(self._page)

    def _on_timer(self) -> None:
        self._gauges_timer = None
        self._set_gauges()

    def _set_gauges(self) -> None:
        for gauge, value in zip(self._gauges, self._in_flight, strict=True):
            gauge.set(value)


class _EngineCollector(Collector):
    """The engines' own counts, as of their last heartbeats."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("penstock_engine_up", "1: ready and alive.", labels=["model"])
        for model in self._registry.models:
            ready = model.client.info is not None and not model.client.dead
            up.add_metric([model.name], float(ready))
        yield up
        families = [_engine_family(metric, "model") for metric in ENGINE_METRICS]
        of_stages = [_engine_family(metric, "model", "stage") for metric in STAGE_METRICS]
        for model in self._registry.models:
            if (beat := model.client.beat) is None:
                continue
            for family, value in zip(families, metric_values(beat), strict=True):
                family.add_metric([model.name], value)
            for number, stage in enumerate(beat.stages):
                for family, value in zip(of_stages, stage_values(stage), strict=True):
                    family.add_metric([model.name, str(number)], value)
        yield from families
        yield from of_stages


def _engine_family(metric: EngineMetric, *labels: str) -> GaugeMetricFamily | CounterMetricFamily:
    return _FAMILIES[metric.kind](f"penstock_engine_{metric.name}", metric.text, labels=labels)
