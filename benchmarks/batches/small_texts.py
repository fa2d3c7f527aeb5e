"""`python -m benchmarks.batches.small_texts`: a text now and then, beside jobs of thousands.

Four clients embed many texts of 128 tokens at a time, again and again; one embeds a text of 32
tokens twenty times a second. Each is first measured alone, then both together.
"""

import argparse
import asyncio
import random
import time
from array import array
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from engine_core.client.engine_client import EngineClient
from server.bench.dummy_models import shape_folder
from server.bench.measurement import Figures, milliseconds
from server.daemon.run import running_engine
from server.models.model_setup import EngineOptions

_CLIENTS, _LONG, _SHORT = 4, 128, 32
_PERIOD_S = 0.05
_WARM_S = 2.0


class _Load:
    """What was answered: texts of the large jobs, and how long each small one took."""

    def __init__(self, client: EngineClient, texts: int) -> None:
        self._client, self._random = client, random.Random(5)
        self._ids = [self._text(_LONG) for _ in range(texts)]
        self.texts = 0
        self.seconds: list[float] = []

    async def large(self) -> None:
        """A client of large jobs, without end."""
        while True:
            await self._client.encode(ids=self._ids)
            self.texts += len(self._ids)

    async def small(self) -> None:
        """One text after the other, without end."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._one())
                await asyncio.sleep(_PERIOD_S)

    async def _one(self) -> None:
        began = time.perf_counter()
        await self._client.encode(ids=[self._text(_SHORT)])
        self.seconds.append(time.perf_counter() - began)

    def _text(self, tokens: int) -> bytes:
        return array("i", self._random.choices(range(1, 20_000), k=tokens)).tobytes()


def main() -> None:
    """Measure, print, and write the figures if that is wanted."""
    given = _parser().parse_args()
    figures = asyncio.run(_measure(given))
    for name, value in figures.items():
        print(f"{name:28} {value:12.2f}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(figures))


async def _measure(given: argparse.Namespace) -> Figures:
    options = EngineOptions(load_format="dummy", device=given.device, log_level="warning")
    figures: Figures = {}
    async with running_engine(given.shape or shape_folder("bge-base"), options) as engine:
        load = _Load(engine.client, given.texts)
        many = [load.large] * _CLIENTS
        parts = {"small": [load.small], "large": many, "both": [load.small, *many]}
        for name, clients in parts.items():
            texts = await _run(load, [client() for client in clients], given.seconds)
            if load.texts:
                figures[f"{name}_texts_per_s"] = texts
            figures |= milliseconds(name, load.seconds)
    return figures


async def _run(load: _Load, clients: list[Coroutine[Any, Any, None]], seconds: float) -> float:
    """Large jobs' texts a second, of so many seconds after a warm-up."""
    tasks = [asyncio.create_task(client) for client in clients]
    await asyncio.sleep(_WARM_S)
    load.texts, load.seconds = 0, []
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    rate = load.texts / (time.perf_counter() - began)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return rate


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches.small_texts")
    parser.description = __doc__
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part (default: 15)")
    parser.add_argument("--texts", type=int, default=2048, help="of a large job (default: 2048)")
    parser.add_argument("--shape", type=Path, help="folder of a config.json (default: bge-base)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return parser


if __name__ == "__main__":
    main()
