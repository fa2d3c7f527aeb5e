"""The daemon's state for `GET /status`, from the metrics that `/metrics` shows."""

import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from prometheus_client.core import Metric

from engine_core.client.engine_client import EngineClient
from server import __version__
from server.observe.processes import copy_label
from server.schemas.status import (
    Answers,
    EngineState,
    EngineStatus,
    InFlight,
    ModelStatus,
    StageLoss,
    Status,
    Times,
)
from server.service.service import Model, Service
from workers.contract.config import ExecutionConfig

_ENGINE: Final = "penstock_engine_"


def status_of(service: Service) -> Status:
    """The present state, with the counts of all API processes."""
    samples = _Samples(service.metrics.own())
    up = samples.all("penstock_batch_process_up")
    return Status(
        version=__version__,
        clock_seconds=time.monotonic(),
        draining=service.draining,
        in_flight=InFlight(
            **{
                what: int(samples.value("penstock_in_flight", what=what))
                for what in ("requests", "rows", "tokens")
            }
        ),
        answers=[
            Answers(endpoint=labels["endpoint"], status=int(labels["status"]), count=int(count))
            for labels, count in samples.all("penstock_http_requests_total")
            if labels["status"].isdecimal()
        ],
        refusals={
            labels["reason"]: int(count)
            for labels, count in samples.all("penstock_refusals_total")
            if count
        },
        batches=("running" if up[0][1] else "waiting") if up else None,
        models=[
            _model_status(model, service.registry.paths_of(model), samples)
            for model in service.registry.models
        ],
    )


class _Samples:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._by_name: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for metric in metrics:
            for sample in metric.samples:
                self._by_name[sample.name].append((sample.labels, sample.value))

    def all(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of a metric's samples that carry `labels`."""
        found = self._by_name.get(name, [])
        return [entry for entry in found if labels.items() <= entry[0].items()]

    def value(self, name: str, **labels: str) -> float:
        """The sum of these samples."""
        return sum(value for _, value in self.all(name, **labels))

    def times(self, name: str, **labels: str) -> Times:
        buckets = sorted(
            (float(own["le"]), count) for own, count in self.all(f"{name}_bucket", **labels)
        )
        below = [0, *(int(count) for _, count in buckets)]
        return Times(
            bounds=[bound for bound, _ in buckets[:-1]],
            counts=[upto - before for before, upto in pairwise(below)],
        )

    def engine(self, client: EngineClient, labels: dict[str, str]) -> EngineStatus:
        """An engine, whose metrics carry `labels`."""
        values: dict[str, float] = {}
        stages: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for name in self._by_name:
            if name.startswith(_ENGINE):
                short = name.removeprefix(_ENGINE).removesuffix("_total")
                for own, value in self.all(name, **labels):
                    if own.keys() == {*labels, "stage"}:
                        stages[int(own["stage"])][short] = value
                    elif own == labels:
                        values[short] = value
        return EngineStatus(
            state=_state(client),
            values=values,
            stages=[stages[i] for i in sorted(stages)],
            loss=_loss(client),
        )


def _model_status(model: Model, endpoints: list[str], samples: _Samples) -> ModelStatus:
    name = model.name
    engines = [
        samples.engine(client, _labels(config.execution))
        for client, config in zip(model.engines, model.served.engines, strict=True)
    ]
    states: list[EngineState] = [engine.state for engine in engines]
    return ModelStatus(
        name=name,
        aliases=list(model.names[1:]),
        task=model.served.execution.task,
        endpoints=endpoints,
        max_model_len=model.max_model_len,
        state="ready" if "ready" in states else states[0],
        prompt_tokens=int(samples.value("penstock_prompt_tokens_total", model=name)),
        generated_tokens=int(samples.value("penstock_generated_tokens_total", model=name)),
        first_token=samples.times("penstock_time_to_first_token_seconds", model=name),
        inter_token=samples.times("penstock_inter_token_seconds", model=name),
        engines=engines,
    )


def _labels(execution: ExecutionConfig) -> dict[str, str]:
    """Those of an engine's metrics."""
    values = execution.name, *copy_label(execution.copy)
    return dict(zip(("model", "copy"), values, strict=False))


def _state(client: EngineClient) -> EngineState:
    if client.dead:
        return "stopped"
    if client.info is None:
        return "loading"
    return "ready" if client.is_ready else "restarting"


def _loss(client: EngineClient) -> StageLoss | None:
    beat = client.beat
    loss = None if beat is None else beat.loss
    if loss is None:
        return None
    ago = loss.ago_s + time.monotonic() - client.beat_at
    return StageLoss(reason=loss.why, seconds_ago=ago, outage_seconds=loss.outage_s)
