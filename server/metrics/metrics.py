"""The counts of one API process, and the page that shows those of all."""

import asyncio
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server import __version__
from server.metrics.batch_state import batches_run
from server.metrics.engine_families import MeteredModel, add_admitted, engine_metrics
from server.metrics.families import OTHER, Count, Distribution, place
from server.metrics.process_memory import process_memory
from server.metrics.request_families import STATUSES, ModelMetrics, RequestFamilies
from server.metrics.request_record import RequestRecord
from server.metrics.shared_cells import SharedCells
from server.metrics.vllm_alias import vllm_metrics
from server.settings.server_config import ServerConfig


class Metrics:
    """What this API process counts, and what `/metrics` and the status page show: the sums over
    all API processes, and the engines' own counts.

    Labels have fixed values: models by their first names, endpoints, statuses, reasons.
    """

    def __init__(
        self,
        config: ServerConfig,
        models: Sequence[MeteredModel],
        endpoints: Sequence[str],
        index: int,
    ) -> None:
        """`endpoints` are paths; `index` is the number of this API process. Raises OSError."""
        self.draining = False
        self._models = models
        self._config = config
        self._families = RequestFamilies(
            endpoints, [model.name for model in models], [key.name for key in config.api_keys]
        )
        count_files = [*map(Path, config.count_files)]
        self._cells = SharedCells(place(self._families.all()), count_files, index)
        own = self._cells.own
        self._of_model = {model.name: self._families.of_model(own, model.name) for model in models}
        self._of_key = self._families.of_keys(own)
        self._by_reason = self._families.by_reason(own)
        self.dropped_lines = self._families.dropped_lines.count(own)
        # Most series are never counted; looking the others up takes longer than counting.
        self._of_answer: dict[tuple[str, int], tuple[Count, Distribution]] = {}
        self._endpoints = frozenset(endpoints)

    def of_model(self, model: str) -> ModelMetrics:
        """The counts of one model, by its first name."""
        return self._of_model[model]

    def set_in_flight(self, requests: int) -> None:
        """So many requests are in flight in this process from now on."""
        self._cells.own[self._families.in_flight.first] = requests

    def answered(self, record: RequestRecord) -> None:
        """A request is over: its record is closed."""
        answer = record.endpoint, record.status
        found = self._of_answer.get(answer)
        if found is None:
            found = self._of_answer[answer] = self._answers(*answer)
        answers, seconds = found
        answers.add()
        seconds.observe(record.total_s)
        if record.error is not None and not record.is_probe:
            self._by_reason[record.error].add()
        if name := record.client.name:
            (self._of_key.get(name) or self._of_key[OTHER]).add(record)
        if record.rows and record.model is not None:
            self._of_model[record.model].count(record)

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now; with the alias, once more under other names."""
        metrics = list(self.own())
        yield from metrics
        if self._config.metrics_alias == "vllm":
            yield from vllm_metrics(self._models, metrics)

    def own(self) -> Iterator[Metric]:
        """Every metric under its own name, as it is now."""
        sums, alive = self._cells.sums(), self._cells.sums_alive()
        for family in self._families.all():
            shown = family.metric(alive if family.kind == "gauge" else sums)
            if family is self._families.in_flight:
                add_admitted(shown, self._models)
            yield shown
        yield from engine_metrics(self._models)
        text = "1: running requests are finished, and new ones refused."
        yield GaugeMetricFamily("penstock_draining", text, value=float(self.draining))
        if self._config.batch_file is not None:
            text = "1: the batch process runs and can write; 0: batches wait."
            running = float(batches_run(Path(self._config.batch_file)))
            yield GaugeMetricFamily("penstock_batch_process_up", text, value=running)
        yield _build_info()
        yield process_memory(self._config.process_file)

    async def page(self) -> bytes:
        """The metrics in Prometheus' text format. Other requests run in between: a page of several
        models takes some ten milliseconds."""
        shown: list[bytes] = []
        for metric in self.collect():
            shown.append(generate_latest(_Only(metric)))
            await asyncio.sleep(0)
        return b"".join(shown)

    def _answers(self, endpoint: str, status: int) -> tuple[Count, Distribution]:
        path = endpoint if endpoint in self._endpoints else OTHER
        known = str(status) if str(status) in STATUSES else OTHER
        families, own = self._families, self._cells.own
        return (
            families.requests.count(own, path, known),
            families.request_seconds.distribution(own, path),
        )


class _Only(Collector):
    """One metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        """Only this one."""
        return [self._metric]


def _build_info() -> Metric:
    info = GaugeMetricFamily(
        "penstock_build_info", "1: this version runs.", labels=["version", "python_version"]
    )
    info.add_metric([__version__, platform.python_version()], 1.0)
    return info
