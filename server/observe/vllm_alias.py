"""The metrics once more under vLLM's names, types and labels (`--metrics-alias vllm`).

Routers (llm-d, production-stack), KEDA's recipes and Grafana's boards read them. Names and labels
are those of `vllm/v1/metrics/loggers.py`, also those that later releases have renamed; buckets are
our own.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from server.observe.engine_families import ServedEngines
from server.observe.processes import copy_label

_NAMES: Final = {
    "penstock_engine_running_rows": ("num_requests_running",),
    "penstock_engine_waiting_rows": ("num_requests_waiting",),
    "penstock_engine_kv_usage_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "penstock_engine_prefix_queried_tokens": (
        *("prefix_cache_queries", "gpu_prefix_cache_queries"),
    ),
    "penstock_engine_cached_tokens": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "penstock_engine_preemptions": ("num_preemptions",),
    "penstock_engine_tokens_per_step": ("iteration_tokens_total",),
    "penstock_prompt_tokens": ("prompt_tokens",),
    "penstock_generated_tokens": ("generation_tokens",),
    "penstock_rows": ("request_success",),
    "penstock_time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "penstock_inter_token_seconds": (
        *("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ),
    "penstock_time_per_output_token_seconds": ("request_time_per_output_token_seconds",),
    "penstock_request_seconds": ("e2e_request_latency_seconds",),
    "penstock_queue_seconds": ("request_queue_time_seconds",),
    "penstock_prefill_seconds": ("request_prefill_time_seconds",),
    "penstock_decode_seconds": ("request_decode_time_seconds",),
    "penstock_inference_seconds": ("request_inference_time_seconds",),
    "penstock_request_prompt_tokens": ("request_prompt_tokens",),
    "penstock_request_generated_tokens": (
        *("request_generation_tokens", "request_max_num_generation_tokens"),
    ),
}

_FINISHED: Final = {
    "stop": ("stop",),
    "length": ("length",),
    "abort": ("abort", "timeout"),
    "error": ("error",),
}
"""vLLM's reasons, each with our own that it stands for."""


def vllm_metrics(engines: ServedEngines, metrics: Iterable[Metric]) -> Iterator[Metric]:
    """The ones of `metrics` that vLLM has, under its names. `engine` is the number of an engine,
    for what is counted for all copies that of the first."""
    numbers: dict[tuple[str, str | None], str] = {}
    for number, (each, _) in enumerate(engines):
        for copy in (None, *copy_label(each.copy)):
            numbers.setdefault((each.name, copy), str(number))
    for metric in metrics:
        samples: list[Sample] = metric.samples
        if metric.name == "penstock_rows":
            samples = _finished(samples)
        for name in _NAMES.get(metric.name, ()):
            yield _renamed(metric, f"vllm:{name}", samples, numbers)
    yield _cache_config(engines)


def _renamed(
    metric: Metric, name: str, samples: list[Sample], numbers: dict[tuple[str, str | None], str]
) -> Metric:
    renamed = Metric(name, metric.documentation, metric.type)
    for sample in samples:
        others = dict(sample.labels)
        model, copy = others.pop("model"), others.pop("copy", None)
        renamed.add_sample(
            name + sample.name.removeprefix(metric.name),
            {"model_name": model, "engine": numbers[model, copy], **others},
            sample.value,
        )
    return renamed


def _finished(samples: Sequence[Sample]) -> list[Sample]:
    values = {(s.labels["model"], s.labels["reason"]): s.value for s in samples}
    name = samples[0].name if samples else ""
    return [
        Sample(
            name,
            {"model": model, "finished_reason": reason},
            sum(values[model, own] for own in ours),
        )
        for model in dict.fromkeys(model for model, _ in values)
        for reason, ours in _FINISHED.items()
    ]


def _cache_config(engines: ServedEngines) -> Metric:
    """The keys of vLLM's `CacheConfig` that a router reads, or that mean the same here."""
    labels = ["block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "engine"]
    text = "The KV cache of each engine."
    info = GaugeMetricFamily("vllm:cache_config_info", text, labels=labels)
    for number, (execution, client) in enumerate(engines):
        if (beat := client.beat) is not None:
            blocks = beat.usage.kv_blocks_total
            values = [execution.block_size, blocks, execution.cache_dtype, blocks > 0, number]
            info.add_metric([str(value) for value in values], 1.0)
    return info
