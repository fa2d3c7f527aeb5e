"""`python -m benchmarks.batches.beside`: online traffic beside a batch that never ends.

Requests of 512 tokens in, 128 out come at random moments (Poisson), first alone; then the batch,
whose groups are those of b16, is alone; then both are there.
"""

import argparse
import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.batches.engine import add_engine_flags, case_of, measured_engine
from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from server.bench.measurement import Figures, milliseconds
from server.bench.workloads import GenerationCase, offline_prompts
from workers.contract.token_sampling import GREEDY

_OWN = GenerationCase(name="online", count=4096, own=512, outputs=128)
_OPEN_GROUPS = 160
"""Groups with the engine at once: two and a half times what its slots hold, in b16."""
_MOST_ROWS_PER_S = 150
"""More than the fastest case has."""
_WARM_SECONDS = 15.0
"""The batch's first seconds have more prompts than later ones."""
_TURN_SECONDS = 10.0
"""When short steps begin, rows that run end before others take their place: for a moment far more
end than later on."""


class Online:
    """Requests that somebody waits for: when each came, its first token and its last one."""

    def __init__(self, client: EngineClient, prompts: list[bytes], rate: float) -> None:
        self._client, self._prompts, self._rate = client, iter(prompts), rate
        self._params = SamplingParams(sampling=GREEDY, max_tokens=_OWN.outputs, ignore_eos=True)
        self._moments = random.Random(5)
        self.times: list[tuple[float, float, float]] = []

    async def run(self, seconds: float) -> list[tuple[float, float, float]]:
        """Those that come within so many seconds."""
        until, first = time.perf_counter() + seconds, len(self.times)
        async with asyncio.TaskGroup() as tasks:
            while time.perf_counter() < until:
                tasks.create_task(self._one(next(self._prompts)))
                await asyncio.sleep(self._moments.expovariate(self._rate))
        return self.times[first:]

    async def _one(self, ids: bytes) -> None:
        came = time.perf_counter()
        begun = 0.0
        with await self._client.generate(self._params, ids=[ids]) as stream:
            while await stream.next():
                begun = begun or time.perf_counter()
        self.times.append((came, begun, time.perf_counter()))


class Batch:
    """Group after group, a number of them at once; when each row ended."""

    def __init__(self, endpoint: str, case: GenerationCase, seconds: float) -> None:
        """Enough for so many seconds, for the engine with this client endpoint."""
        self._client, self._case = EngineClient(endpoint), case
        self._client.batch = True
        count = math.ceil(seconds * _MOST_ROWS_PER_S / case.members)
        ordered = msgspec.structs.replace(case, count=count, shuffled=False)
        prompts = offline_prompts(ordered)
        self._groups = [prompts[i : i + case.members] for i in range(0, len(prompts), case.members)]
        self._room = asyncio.Semaphore(_OPEN_GROUPS)
        self.ends: list[float] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Until the block ends."""
        self._client.start()
        feeding = asyncio.create_task(self._feed())
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
            self._client.close()

    def rate(self, since: float, until: float) -> float:
        """Rows a second."""
        return sum(since <= end < until for end in self.ends) / (until - since)

    async def _feed(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for members in self._groups:
                await self._room.acquire()
                tasks.create_task(self._group(members))

    async def _group(self, members: list[bytes]) -> None:
        params = SamplingParams(sampling=GREEDY, max_tokens=self._case.outputs, ignore_eos=True)
        with await self._client.generate(params, ids=members) as stream:
            while updates := await stream.next():
                now = time.perf_counter()
                self.ends += [now for output in updates if output.finish is not None]
        self._room.release()


def online_figures(times: list[tuple[float, float, float]]) -> Figures:
    """Times to the first token, and of each token after it."""
    came, begun, ended = np.array(times).T
    return {
        "requests": len(times),
        **milliseconds("ttft", begun - came),
        **milliseconds("tpot", (ended - begun) / (_OWN.outputs - 1)),
    }


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The three phases, and each online request and batch rate by second of the last."""
    async with measured_engine(given) as engine:
        online = Online(engine.client, offline_prompts(_OWN), given.rate)
        seconds = _WARM_SECONDS + given.alone_seconds + given.seconds
        batch = Batch(engine.model.engine.client_endpoint, case_of(given), seconds)
        await online.run(3.0)
        idle = online_figures(await online.run(given.idle_seconds))
        async with batch.running():
            await asyncio.sleep(_WARM_SECONDS)
            alone = time.perf_counter()
            await asyncio.sleep(given.alone_seconds)
            begun = time.perf_counter()
            times = await online.run(given.seconds)
            ended = time.perf_counter()
    seconds = int(ended - begun)
    return {
        "idle": idle,
        "beside": online_figures(times),
        "batch": {
            "alone_requests_per_s": batch.rate(alone, begun),
            "beside_requests_per_s": batch.rate(begun + _TURN_SECONDS, begun + seconds),
        },
        "online_rate": given.rate,
        "rows_by_second": [batch.rate(begun + at, begun + at + 1) for at in range(seconds)],
        "requests": [
            {"at": came - begun, "ttft_ms": (first - came) * 1e3,
             "tpot_ms": (end - first) / (_OWN.outputs - 1) * 1e3}
            for came, first, end in times
        ],
    }  # fmt: skip


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """For a person, each beside its goal."""
    idle, beside, batch = figures["idle"], figures["beside"], figures["batch"]
    for name, margin in (("ttft_p50_ms", 40), ("ttft_p99_ms", 120)):
        goal = idle[name] + margin
        yield f"{name}: idle {idle[name]:.1f}, beside {beside[name]:.1f} (goal {goal:.1f})"
    tpots = idle["tpot_p50_ms"], beside["tpot_p50_ms"]
    yield "tpot_p50_ms: idle {:.1f}, beside {:.1f} (goal 30)".format(*tpots)
    alone, left = batch["alone_requests_per_s"], batch["beside_requests_per_s"]
    online = figures["online_rate"] * _OWN.outputs
    yield (
        f"batch: alone {alone:.1f} req/s, beside {left:.1f} ({left / alone:.2f}; goal 0.8, less "
        f"{online:g} online tokens a second)"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batches.beside", description=__doc__
    )
    add_engine_flags(parser)
    parser.add_argument("--rate", type=float, default=4.0, help="online requests a second")
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--alone-seconds", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    figures = asyncio.run(measure(given))
    if given.json is not None:
        Path(given.json).write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    print("\n".join(lines(figures)))


if __name__ == "__main__":
    main()
