"""The counts of one API process, and the page that shows those of all."""

import asyncio
import platform
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server import __version__
from server.errors import ERRORS
from server.observe.engine_families import MeteredModel, add_admitted, engine_metrics
from server.observe.families import OTHER, Count, Distribution, Family, SharedCells, place
from server.observe.processes import batches_run, process_memory
from server.observe.request_record import ROW_ENDS, RequestRecord
from server.observe.vllm_alias import vllm_metrics
from server.settings.server_config import ServerConfig

_INTERNAL: Final = 500
_TEI_STATUSES: Final = (413, 422, 424)
STATUSES: Final = tuple(
    str(status)
    for status in sorted({200, 304, 307, 499, *_TEI_STATUSES, *(e.status for e in ERRORS.values())})
)

_FAILURES: Final = tuple(code for code, kind in ERRORS.items() if kind.status == _INTERNAL)
_REFUSALS: Final = tuple(code for code, kind in ERRORS.items() if kind.status != _INTERNAL)

_LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
_TOKENS: Final = tuple(base * 10**power for power in range(5) for base in (1, 2, 5))

_DISTRIBUTIONS: Final = {
    "request_seconds": ("From a request's headers to its end, if a model answered it.", _LONG_S),
    "time_to_first_token_seconds": ("From a checked request to its first token.", _SHORT_S),
    "inter_token_seconds": ("Between two updates of one request.", _TOKEN_S),
    "tokenize_seconds": ("From a job's arrival in the engine until it is tokenized.", _SHORT_S),
    "queue_seconds": ("From there until a step begins to compute it.", _SHORT_S),
    "prefill_seconds": ("From there to the first token, or the end of the last text.", _SHORT_S),
    "decode_seconds": ("From the first token to the last.", _LONG_S),
    "inference_seconds": ("Prefill and decode together.", _LONG_S),
    "time_per_output_token_seconds": ("Decode, by each token after the first.", _TOKEN_S),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generated_tokens": ("Generated tokens of a request.", _TOKENS),
}
_COUNTS: Final = {
    "prompt_tokens": "Tokens of accepted inputs.",
    "cached_tokens": "Prompt tokens that were found in the prefix cache.",
    "generated_tokens": "Tokens of continuations.",
}


_KEY_COUNTS: Final = {
    "requests": "Requests by the name of their API key.",
    "prompt_tokens": "Tokens of accepted inputs, by the same.",
    "generated_tokens": "Tokens of continuations, by the same.",
}


def _inference_s(record: RequestRecord) -> float | None:
    return None if record.prefill_s is None else record.prefill_s + (record.decode_s or 0.0)


def _output_token_s(record: RequestRecord) -> float | None:
    # The rows of a request decode side by side.
    further = record.output_tokens / record.rows - 1
    return None if record.decode_s is None or further <= 0 else record.decode_s / further


def _generated_tokens(record: RequestRecord) -> int | None:
    return None if record.decode_s is None else record.output_tokens


_OBSERVED_AT_END: Final[dict[str, Callable[[RequestRecord], float | None]]] = {
    "request_seconds": attrgetter("total_s"),
    "tokenize_seconds": attrgetter("tokenize_s"),
    "queue_seconds": attrgetter("queue_s"),
    "prefill_seconds": attrgetter("prefill_s"),
    "decode_seconds": attrgetter("decode_s"),
    "inference_seconds": _inference_s,
    "time_per_output_token_seconds": _output_token_s,
    "request_prompt_tokens": attrgetter("prompt_tokens"),
    "request_generated_tokens": _generated_tokens,
}
"""What a request that is over adds to distributions, None for nothing."""


class ModelMetrics:
    """The counts of one model."""

    def __init__(
        self,
        counts: dict[str, Count],
        distributions: dict[str, Distribution],
        rows: dict[str, Count],
    ) -> None:
        """By their names without `penstock_`; `rows` by how they ended."""
        self.prompt_tokens = counts["prompt_tokens"]
        self.generated_tokens = counts["generated_tokens"]
        self.first_token_seconds = distributions["time_to_first_token_seconds"]
        self.next_token_seconds = distributions["inter_token_seconds"]
        self._cached_tokens = counts["cached_tokens"]
        self._at_end = [(distributions[name], value) for name, value in _OBSERVED_AT_END.items()]
        self._rows = rows

    def count(self, record: RequestRecord) -> None:
        """A request that this model's engine has accepted is over."""
        for end, rows in record.ended_rows.items():
            self._rows[end].add(rows)
        self._cached_tokens.add(record.cached_tokens)
        for distribution, value_of in self._at_end:
            if (value := value_of(record)) is not None:
                distribution.observe(value)


class KeyMetrics(NamedTuple):
    """The counts of one API key."""

    requests: Count
    prompt_tokens: Count
    generated_tokens: Count

    def add(self, record: RequestRecord) -> None:
        """A request of this key is over."""
        self.requests.add()
        self.prompt_tokens.add(record.prompt_tokens)
        self.generated_tokens.add(record.output_tokens)


class RequestFamilies:
    """The families, before they have cells."""

    def __init__(
        self, endpoints: Sequence[str], models: Sequence[str], keys: Sequence[str]
    ) -> None:
        """`endpoints` are paths, `models` and `keys` names. A key that comes later counts as
        another."""
        paths, self._keys = (*dict.fromkeys(endpoints), OTHER), (*dict.fromkeys(keys), OTHER)
        self.requests = Family(
            "counter",
            "penstock_http_requests",
            "Answers by endpoint and status (499: the client left).",
            {"endpoint": paths, "status": (*STATUSES, OTHER)},
            shows_zeros=False,
        )
        self.request_seconds = Family(
            "histogram",
            "penstock_http_request_seconds",
            "From a request's headers to the end of its answer.",
            {"endpoint": paths},
            _LONG_S,
            shows_zeros=False,
        )
        self.refusals = _by_reason("refusals", "Requests that were refused.", _REFUSALS)
        self.failures = _by_reason("failures", "Requests that the server failed.", _FAILURES)
        self.in_flight = Family(
            "gauge",
            "penstock_in_flight",
            "What has been admitted and not yet answered.",
            {"what": ("requests",)},
        )
        self.dropped_lines = Family(
            "counter",
            "penstock_access_log_dropped",
            "Lines of the access log that could not be written.",
            {},
        )
        model = {"model": tuple(models)}
        self._of_keys = _counters("key_", _KEY_COUNTS, {"key": self._keys}, shows_zeros=False)
        self._rows = Family(
            "counter", "penstock_rows", "Rows by how they ended.", {**model, "reason": ROW_ENDS}
        )
        self._counts = _counters("", _COUNTS, model)
        self._distributions = {
            name: Family("histogram", f"penstock_{name}", text, model, bounds)
            for name, (text, bounds) in _DISTRIBUTIONS.items()
        }

    def all(self) -> list[Family]:
        """In the order in which they are shown."""
        of_requests = [self.requests, self.request_seconds, self.refusals, self.failures]
        of_models = [*self._counts.values(), self._rows, *self._distributions.values()]
        return [
            *of_requests,
            self.in_flight,
            self.dropped_lines,
            *self._of_keys.values(),
            *of_models,
        ]

    def of_keys(self, cells: "memoryview[float]") -> dict[str, KeyMetrics]:
        """The counts of each API key, by its name, and of all others."""
        return {
            key: KeyMetrics(*(family.count(cells, key) for family in self._of_keys.values()))
            for key in self._keys
        }

    def of_model(self, cells: "memoryview[float]", model: str) -> ModelMetrics:
        """The counts of one model."""
        return ModelMetrics(
            {name: family.count(cells, model) for name, family in self._counts.items()},
            {n: family.distribution(cells, model) for n, family in self._distributions.items()},
            {end: self._rows.count(cells, model, end) for end in ROW_ENDS},
        )

    def by_reason(self, cells: "memoryview[float]") -> dict[str, Count]:
        """The counts of refusals and failures, by the code of their errors."""
        refusals = {code: self.refusals.count(cells, code) for code in _REFUSALS}
        return refusals | {code: self.failures.count(cells, code) for code in _FAILURES}


def _counters(
    prefix: str,
    texts: dict[str, str],
    labels: dict[str, tuple[str, ...]],
    *,
    shows_zeros: bool = True,
) -> dict[str, Family]:
    return {
        name: Family("counter", f"penstock_{prefix}{name}", text, labels, shows_zeros=shows_zeros)
        for name, text in texts.items()
    }


def _by_reason(name: str, text: str, codes: tuple[str, ...]) -> Family:
    return Family("counter", f"penstock_{name}", text, {"reason": codes})


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
