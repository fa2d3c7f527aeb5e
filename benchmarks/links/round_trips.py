"""Between processes: client to engine core and back, stage to stage and back."""

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import zmq

from benchmarks.engine.in_memory_core import engine_config
from benchmarks.processes import pipes, running_module
from benchmarks.report import Budget, Figure
from engine_core.client.engine_client import EngineClient
from engine_core.executor.stage_link import StageLink
from engine_core.messages import SamplingParams
from server.demo import GENERATOR_NAME, demo_models
from server.models.model_setup import EngineOptions
from server.settings.settings import child_environment
from workers.contract.config import WorkerConfig
from workers.contract.process import NO_MULTICAST

_ROUND_TRIPS, _HOPS = 3000, 500
_WARM_UP = 100
_RETURN_MS = 1
_HIDDEN_STATES = {"demo generator, 16 rows": (16, 256), "8B model, 64 rows": (64, 4096)}


class Hops(msgspec.Struct, frozen=True):
    """What `stage_hop` prints: times in µs of hidden states there and of tokens back, by the clock
    that all processes of a machine share."""

    there: list[float]
    back: list[float]


def measure() -> list[Figure]:
    """Medians and 99th percentiles."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        trips = asyncio.run(_client_round_trips(f"ipc://{folder}/core"))
    figures = [
        Figure("client to core and back", _median(trips), "µs", note="a job of one token"),
        Figure("client to core and back, p99", _p99(trips), "µs"),
    ]
    back: list[float] = []
    for name, (rows, hidden_size) in _HIDDEN_STATES.items():
        hops = _stage_hops(rows, hidden_size)
        back += hops.back
        size = rows * hidden_size * 4 / 1e3
        note = f"{size:,.0f} kB, gloo"
        figures.append(Figure(f"stage to stage, {name}", _median(hops.there), "µs", note=note))
    note = f"ZMQ; median {_median(back):.0f} µs"
    figures.append(Figure("tokens back, p99", _p99(back) / 1e3, "ms", Budget(_RETURN_MS), note))
    return figures


async def _client_round_trips(endpoint: str) -> list[float]:
    """µs from a job's submission to its only token."""
    with running_module("benchmarks.http.fake_engine", endpoint, "generate", "1", "0", "7"):
        client = EngineClient(endpoint)
        client.start()
        await client.wait_ready()
        params, ids = SamplingParams(max_tokens=1), [bytes(4 * 32)]
        trips: list[float] = []
        for _ in range(_WARM_UP + _ROUND_TRIPS):
            started = time.perf_counter()
            stream = await client.generate(params, ids=ids)
            await stream.next()
            trips.append((time.perf_counter() - started) * 1e6)
        client.close()
    return trips[_WARM_UP:]


def _stage_hops(rows: int, hidden_size: int) -> Hops:
    engine = engine_config(
        demo_models()[GENERATOR_NAME], EngineOptions(device="cpu", pipeline_stages=2)
    )
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        execution = msgspec.structs.replace(
            engine.execution,
            model=msgspec.structs.replace(engine.execution.model, hidden_size=hidden_size),
            worker_endpoint=f"ipc://{folder}/workers",
            token_endpoint=f"ipc://{folder}/tokens",
        )
        files = [Path(folder, f"{stage}.json") for stage in (0, 1)]
        for stage, file in enumerate(files):
            file.write_bytes(msgspec.json.encode(WorkerConfig(execution=execution, stage=stage)))
        with zmq.Context() as context:
            executor = StageLink(msgspec.structs.replace(engine, execution=execution), context)
            hops = _run_stages(files, rows, executor)
            executor.close()
    return Hops(hops.there[_WARM_UP:], hops.back[_WARM_UP:])


def _run_stages(files: list[Path], rows: int, executor: StageLink) -> Hops:
    """Meanwhile `executor` answers the stages, who find each other by its store."""
    arguments = str(rows), str(_WARM_UP + _HOPS)
    environment = child_environment(settings=NO_MULTICAST | {"GLOO_SOCKET_IFNAME": "lo"})
    with ExitStack() as running:
        first, _ = [
            running.enter_context(
                running_module(
                    "benchmarks.links.stage_hop",
                    str(file),
                    *arguments,
                    environment=environment,
                    piped=True,
                )
            )
            for file in files
        ]
        _, stdout = pipes(first)
        poller = zmq.Poller()
        poller.register(stdout, zmq.POLLIN)
        poller.register(executor.results, zmq.POLLIN)
        while stdout.fileno() not in dict(poller.poll()):
            executor.poll()
        return msgspec.json.decode(stdout.readline(), type=Hops)


def _median(times: list[float]) -> float:
    return float(np.median(times))


def _p99(times: list[float]) -> float:
    return float(np.percentile(times, 99))
