"""HTTP: what one API process carries, before engines that compute nothing."""

import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from benchmarks.daemon.process_stats import cpu_seconds
from benchmarks.http import wrk
from benchmarks.http.api_processes import TEXT, Endpoint, running_api_processes
from benchmarks.http.dialects import dialect_figures
from benchmarks.report import Budget, Figure
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models

_REQUESTS_A_SECOND, _TOKENS_A_SECOND = 5_000, 50_000
_CONNECTIONS, _STREAMS = 64, 256
_SECONDS, _WARM_UP_SECONDS = 8, 2
_STREAM_TOKENS, _STEP_MS = 64, 4


def measure() -> list[Figure]:
    """Requests and streamed tokens a second, and what each costs the API process in CPU time."""
    models = demo_models()
    paced = Endpoint(models[GENERATOR_NAME], "generate", _STEP_MS)
    endpoints = {
        "embedder": Endpoint(models[EMBEDDER_NAME], "embed"),
        "instant": Endpoint(models[GENERATOR_NAME], "generate"),
        "paced": paced,
    }
    with running_api_processes(endpoints) as api:
        url, (pid,) = api.url, api.pids
        embedding = {"model": "embedder", "input": TEXT}
        completion = {"model": "instant", "prompt": TEXT, "max_tokens": 16, "ignore_eos": True}
        figures = [
            *_requests("embeddings", f"{url}/v1/embeddings", embedding, pid),
            *_requests("completions of 16 tokens", f"{url}/v1/completions", completion, pid),
            *_streams(f"{url}/v1/completions", pid),
        ]
    return [*figures, *dialect_figures(paced)]


def _requests(name: str, url: str, body: Mapping[str, object], pid: int) -> list[Figure]:
    load, cpu = _load(url, body, _CONNECTIONS, pid)
    note = f"{_CONNECTIONS} connections; median {load.median_us / 1e3:.1f} ms, "
    note += f"p99 {load.p99_us / 1e3:.1f} ms"
    budget = Budget(_REQUESTS_A_SECOND, at_least=True)
    return [
        Figure(name, load.per_second, "requests/s", budget, note),
        Figure(f"{name}, CPU time", cpu * 1e6 / load.requests, "µs each"),
    ]


def _streams(url: str, pid: int) -> list[Figure]:
    body = {
        "model": "paced",
        "prompt": TEXT,
        "max_tokens": _STREAM_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(_load, url, body, _STREAMS, pid)
        time.sleep(_WARM_UP_SECONDS + _SECONDS / 2)
        events = _events_of_one(url, body)
        load, cpu = loading.result()
    tokens = load.requests * _STREAM_TOKENS
    offered = _STREAMS * 1000 // _STEP_MS
    note = f"{_STREAMS} streams of {_STREAM_TOKENS}, {offered:,}/s offered, "
    note += f"{_STREAM_TOKENS / events:.1f} tokens an event"
    budget = Budget(_TOKENS_A_SECOND, at_least=True)
    rate = load.per_second * _STREAM_TOKENS
    return [
        Figure("streamed tokens", rate, "tokens/s", budget, note),
        Figure("streamed tokens, CPU time", cpu * 1e6 / tokens, "µs each"),
    ]


def _load(
    url: str, body: Mapping[str, object], connections: int, pid: int
) -> tuple[wrk.Load, float]:
    """A run of wrk after a short one, and the CPU seconds that it cost process `pid`."""
    wrk.post(url, body, connections=connections, seconds=_WARM_UP_SECONDS)
    before = cpu_seconds(pid)
    load = wrk.post(url, body, connections=connections, seconds=_SECONDS)
    return load, cpu_seconds(pid) - before


def _events_of_one(url: str, body: Mapping[str, object]) -> int:
    """In how many events with text the server sends one stream, under the load of the others."""
    request = urllib.request.Request(
        url, msgspec.json.encode(body), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return sum(line.startswith(b'data: {"id"') for line in answer)
