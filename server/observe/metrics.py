"""The counts of one API process, and the page that shows those of all."""

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_core.client.engines import Engines
from server import __version__
from server.errors import ERRORS
from server.observe.engine_families import add_admitted, engine_metrics, served_engines
from server.observe.processes import batches_run, process_memory
from server.observe.request_record import ROW_ENDS, RequestRecord
from server.observe.shared_cells import (
    OTHER,
    Count,
    Distribution,
    Family,
    SharedCell,
    SharedCells,
    place,
)
from server.observe.vllm_alias import vllm_metrics
from server.settings.settings import ServerConfig

_INTERNAL: Final = 500
_TEI_STATUSES: Final = (413, 422, 424)
STATUSES: Final = tuple(
    str(status)
    for status in sorted(
        {101, 200, 304, 307, 499, *_TEI_STATUSES, *(e.status for e in ERRORS.values())}
    )
)

_FAILURES: Final = tuple(code for code, kind in ERRORS.items() if kind.status == _INTERNAL)
_REASONS: Final = (
    ("refusals", "Requests that were refused.", tuple(e for e in ERRORS if e not in _FAILURES)),
    ("failures", "Requests that the server failed.", _FAILURES),
)

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
    "vector_cache_queries": "Texts whose vector or scores were looked for in the cache.",
    "vector_cache_hits": "Texts whose vector or scores were found in the cache.",
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
"""The value that a request adds to each distribution at its end, None for nothing."""


class ModelMetrics:
    def __init__(
        self, families: Mapping[str, Family], cells: "memoryview[float]", model: str
    ) -> None:
        counts = {name: families[name].count(cells, model) for name in _COUNTS}
        distributions = {n: families[n].distribution(cells, model) for n in _DISTRIBUTIONS}
        self.prompt_tokens = counts["prompt_tokens"]
        self.generated_tokens = counts["generated_tokens"]
        self.first_token_seconds = distributions["time_to_first_token_seconds"]
        self.next_token_seconds = distributions["inter_token_seconds"]
        self._cached_tokens = counts["cached_tokens"]
        self.vector_queries = counts["vector_cache_queries"]
        self.vector_hits = counts["vector_cache_hits"]
        self._at_end = [(distributions[name], value) for name, value in _OBSERVED_AT_END.items()]
        self._rows = {end: families["rows"].count(cells, model, end) for end in ROW_ENDS}

    def count(self, record: RequestRecord) -> None:
        for end, rows in record.ended_rows.items():
            self._rows[end].add(rows)
        self._cached_tokens.add(record.cached_tokens)
        for distribution, value_of in self._at_end:
            if (value := value_of(record)) is not None:
                distribution.observe(value)


def _families(
    paths: tuple[str, ...], models: tuple[str, ...], keys: tuple[str, ...]
) -> dict[str, Family]:
    """The families that API processes count in, as they are shown, by names without `penstock_`."""
    model, key = {"model": models}, {"key": keys}
    families = [
        *_of_answers({"endpoint": paths}),
        *[
            Family("counter", f"penstock_key_{name}", text, key, shows_zeros=False)
            for name, text in _KEY_COUNTS.items()
        ],
        *[Family("counter", f"penstock_{name}", text, model) for name, text in _COUNTS.items()],
        Family("counter", "penstock_rows", "Rows by how they ended.", model | {"reason": ROW_ENDS}),
        *[
            Family("histogram", f"penstock_{name}", text, model, bounds)
            for name, (text, bounds) in _DISTRIBUTIONS.items()
        ],
    ]
    return {family.name.removeprefix("penstock_"): family for family in families}


def _of_answers(endpoint: dict[str, tuple[str, ...]]) -> Iterator[Family]:
    yield Family(
        "counter",
        "penstock_http_requests",
        "Answers by endpoint and status (499: the client left).",
        {**endpoint, "status": (*STATUSES, OTHER)},
        shows_zeros=False,
    )
    yield Family(
        "histogram",
        "penstock_http_request_seconds",
        "From a request's headers to the end of its answer.",
        endpoint,
        _LONG_S,
        shows_zeros=False,
    )
    for name, text, codes in _REASONS:
        yield Family("counter", f"penstock_{name}", text, {"reason": codes})
    text = "What has been admitted and not yet answered."
    yield Family("gauge", "penstock_in_flight", text, {"what": ("requests",)})
    text = "Bytes of vectors and scores in the caches of API processes."
    yield Family("gauge", "penstock_vector_cache_bytes", text, {})
    yield Family("gauge", "penstock_connections", "Open connections of clients.", {})
    text = "Lines of the access log that could not be written."
    yield Family("counter", "penstock_access_log_dropped", text, {})


class Metrics:
    """The counts of this API process. `/metrics` and the status page show the sums over all of
    them, and the engines' own. Labels have fixed values: models by their first names, endpoints,
    statuses, reasons."""

    def __init__(
        self,
        config: ServerConfig,
        engines: Sequence[Engines],
        endpoints: Sequence[str],
        index: int,
    ) -> None:
        """`endpoints` are paths, `index` is the number of this API process. A key that comes later
        counts as another. Raises OSError."""
        self.draining = False
        self._engines = served_engines(zip(config.models, engines, strict=True))
        self._config = config
        models = tuple(model.name for model in config.models)
        keys = (*config.key_names, OTHER)
        families = self._families = _families((*dict.fromkeys(endpoints), OTHER), models, keys)
        count_files = [*map(Path, config.count_files)]
        self._cells = SharedCells(place([*families.values()]), count_files, index)
        own = self._cells.own
        self.set_in_flight(0)
        self._of_model = {model: ModelMetrics(families, own, model) for model in models}
        of_keys = [families[f"key_{name}"] for name in _KEY_COUNTS]
        self._of_key = {key: [each.count(own, key) for each in of_keys] for key in keys}
        self._by_reason = {
            code: families[name].count(own, code) for name, _, codes in _REASONS for code in codes
        }
        self.connections = SharedCell(self._cells, families["connections"].first)
        self.dropped_lines = families["access_log_dropped"].count(own)
        # Most series are never counted; looking the others up takes longer than counting.
        self._answers = cache(self._answers_of)
        self._endpoints = frozenset(endpoints)

    def of_model(self, model: str) -> ModelMetrics:
        return self._of_model[model]

    def set_in_flight(self, requests: int) -> None:
        self._cells.own[self._families["in_flight"].first] = requests

    def cached_vectors(self, model: str, queries: int, hits: int, num_bytes: int) -> None:
        """Note how many vectors were looked for and found, and what this process' cache holds."""
        of_model = self._of_model[model]
        of_model.vector_queries.add(queries)
        of_model.vector_hits.add(hits)
        self._cells.own[self._families["vector_cache_bytes"].first] = num_bytes

    def answered(self, record: RequestRecord) -> None:
        """A request is over: its record is closed."""
        answers, seconds = self._answers(record.endpoint, record.status)
        answers.add()
        seconds.observe(record.total_s)
        if record.error is not None and not record.is_probe:
            self._by_reason[record.error].add()
        if name := record.client.name:
            counts = self._of_key.get(name, self._of_key[OTHER])
            amounts = (1, record.prompt_tokens, record.output_tokens)
            for count, amount in zip(counts, amounts, strict=True):
                count.add(amount)
        if record.rows and record.model is not None:
            self._of_model[record.model].count(record)

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now. With the alias, once more under other names."""
        metrics = list(self.own())
        yield from metrics
        if self._config.metrics_alias == "vllm":
            yield from vllm_metrics(self._engines, metrics)

    def own(self) -> Iterator[Metric]:
        """Every metric under its own name, as it is now."""
        sums = self._cells.sums()
        for name, family in self._families.items():
            shown = family.metric(sums)
            if name == "in_flight":
                add_admitted(shown, self._engines)
            yield shown
        yield from engine_metrics(self._engines)
        text = "1: running requests are finished, and new ones refused."
        yield GaugeMetricFamily("penstock_draining", text, value=float(self.draining))
        if self._config.batch_file is not None:
            text = "1: the batch process runs and can write; 0: batches wait."
            running = float(batches_run(Path(self._config.batch_file)))
            yield GaugeMetricFamily("penstock_batch_process_up", text, value=running)
        text, labels = "1: this version runs.", ["version", "python_version"]
        info = GaugeMetricFamily("penstock_build_info", text, labels=labels)
        info.add_metric([__version__, platform.python_version()], 1.0)
        yield info
        yield process_memory(self._config.process_file)

    async def page(self) -> bytes:
        """The metrics in Prometheus' text format. It may take ten milliseconds: others run in
        between."""
        shown: list[bytes] = []
        for metric in self.collect():
            shown.append(generate_latest(_Only(metric)))
            await asyncio.sleep(0)
        return b"".join(shown)

    def _answers_of(self, endpoint: str, status: int) -> tuple[Count, Distribution]:
        path = endpoint if endpoint in self._endpoints else OTHER
        known = str(status) if str(status) in STATUSES else OTHER
        families, own = self._families, self._cells.own
        return (
            families["http_requests"].count(own, path, known),
            families["http_request_seconds"].distribution(own, path),
        )


class _Only(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]
