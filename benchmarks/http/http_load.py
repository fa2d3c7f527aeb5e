"""HTTP: what one API process carries, before engines that compute nothing."""

import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.daemon.process_stats import cpu_seconds
from benchmarks.http import wrk
from benchmarks.processes import running_command, running_module
from benchmarks.report import Budget, Figure
from engine_core.tokenization.tokenizer import Tokenizer
from server.daemon.child_commands import daemon_parts
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.server_config import Limits, ServedModel, ServerConfig
from workers.contract.config import Task

_REQUESTS_A_SECOND, _TOKENS_A_SECOND = 5_000, 50_000
_CONNECTIONS, _STREAMS = 64, 256
_SECONDS, _WARM_UP_SECONDS = 8, 2
_STREAM_TOKENS, _STEP_MS = 64, 4
_START_SECONDS = 30
_TEXT = "The gate opens, water falls, and the turbine turns; the river goes on below it."

_ENGINES: dict[str, tuple[str, Task, int]] = {
    "embedder": (EMBEDDER_NAME, "embed", 0),
    "instant": (GENERATOR_NAME, "generate", 0),
    "paced": (GENERATOR_NAME, "generate", _STEP_MS),
}
"""Name in requests -> demo model that it passes for, its task, ms between a row's tokens."""


def measure() -> list[Figure]:
    """Requests and streamed tokens a second, and what each costs the API process in CPU time."""
    with _api_process() as (url, pid):
        embedding = {"model": "embedder", "input": _TEXT}
        completion = {"model": "instant", "prompt": _TEXT, "max_tokens": 16, "ignore_eos": True}
        return [
            *_requests("embeddings", f"{url}/v1/embeddings", embedding, pid),
            *_requests("completions of 16 tokens", f"{url}/v1/completions", completion, pid),
            *_streams(f"{url}/v1/completions", pid),
        ]


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
        "prompt": _TEXT,
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


@contextmanager
def _api_process() -> Generator[tuple[str, int]]:
    """One API process, ready, before the fake engines: its address and process id."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as folder,
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
        ExitStack() as running,
    ):
        models = [_served(name, folder) for name in _ENGINES]
        for model in models:
            running.enter_context(_fake_engine(model))
        parts = daemon_parts(_server_config(models), listener.fileno(), Path(folder))
        (api,) = [part for part in parts if part.role == "api"]
        process = running.enter_context(
            running_command(api.command, api.environment, pass_fds=(listener.fileno(),))
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # A connection must not wait in the queue of a socket that nobody here accepts from.
        listener.close()
        _wait_ready(url)
        yield url, process.pid


def _server_config(models: Sequence[ServedModel]) -> ServerConfig:
    return ServerConfig(
        host="127.0.0.1",
        port=0,
        api_workers=1,
        drain_timeout=1.0,
        log_level="warning",
        limits=Limits(),
        models=tuple(models),
    )


def _served(name: str, folder: str) -> ServedModel:
    model = demo_models()[_ENGINES[name][0]]
    prefix = f"{folder}/{name}"
    return set_up_model(name, model, EngineOptions(device="cpu"), Limits(), prefix)


def _fake_engine(model: ServedModel):
    _, task, step_ms = _ENGINES[model.name]
    (ids,) = Tokenizer.load(Path(model.path)).encode([_TEXT], add_special_tokens=False)
    tokens = np.frombuffer(ids, np.int32).tolist()
    arguments = (model.engine.client_endpoint, task, step_ms, *tokens)
    return running_module("benchmarks.http.fake_engine", *map(str, arguments))


def _wait_ready(url: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health/ready"):
                return
        except urllib.error.URLError:
            time.sleep(0.05)
    raise TimeoutError(f"the API process is not ready after {_START_SECONDS} s")
