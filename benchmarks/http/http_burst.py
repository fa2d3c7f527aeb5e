"""HTTP: how many tokens a second the set-up of `http-gen-burst` streams, before a fake engine.

512 streams at once, each followed by the next, with as many API processes as clients: in a run of
`penstock bench serve --start --case http-gen-burst --api-workers N --clients N` HTTP is not the
limit, as long as the engine generates fewer tokens a second than this.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from benchmarks.http.api_processes import Endpoint, running_api_processes
from benchmarks.report import Budget, Figure
from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.http_client import Address
from server.bench.dummy_models import shape_folder, tokenizer_for, write_model
from server.bench.http_runner import HTTPRunner
from server.bench.measurement import Figures
from server.bench.words import single_token_words
from server.bench.workloads import HTTP, HTTPCase
from server.models.devices import available_cores

_TOKENS_A_SECOND = 40_000
_STREAMS, _ROUNDS, _STEP_MS = 512, 4, 8
_MODEL = "paced"
_MOST_PROCESSES = 16


def measure() -> list[Figure]:
    """Streamed tokens a second with 1, 2, 4 and more processes on either side, as many as there are
    cores for."""
    burst = next(case for case in HTTP if case.name == "http-gen-burst")
    case = msgspec.structs.replace(burst, count=_STREAMS * _ROUNDS, in_flight=_STREAMS)
    tokenizer = tokenizer_for(case, None)
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        model = Path(directory) / "model"
        write_model(model, shape_folder(case.shape), tokenizer)
        return [
            _figure(processes, _run(case, model, tokenizer, processes))
            for processes in _process_counts()
        ]


def _process_counts() -> Iterator[int]:
    """Beside API processes and clients, the fake engine needs a core."""
    processes = 1
    while processes == 1 or (processes <= _MOST_PROCESSES and 2 * processes < available_cores()):
        yield processes
        processes *= 2


def _run(case: HTTPCase, model: Path, tokenizer: Tokenizer, processes: int) -> Figures:
    async def measured(address: Address) -> Figures:
        runner = HTTPRunner(address, _MODEL, words, clients=processes)
        await runner.warm_up(case)
        return await runner.measure(case, 0)

    words = single_token_words(tokenizer)
    endpoints = {_MODEL: Endpoint(model, "generate", _STEP_MS)}
    with running_api_processes(endpoints, processes) as api:
        return uvloop.run(measured(Address.of(api.url, None)))


def _figure(processes: int, figures: Figures) -> Figure:
    offered = _STREAMS * 1000 // _STEP_MS
    note = f"{_STREAMS} streams, {offered:,}/s offered; median {figures['tpot_p50_ms']:.1f} ms a "
    note += f"token; busiest client {figures['client_cpu_share']:.0%} of a core"
    rate, budget = figures["output_tokens_per_s"], Budget(_TOKENS_A_SECOND, at_least=True)
    name = f"streamed tokens, API processes and clients: {processes}"
    return Figure(name, rate, "tokens/s", budget, note)
