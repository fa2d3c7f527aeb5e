"""Thousands of short requests to a running engine, some of which leave early, and what they leave
behind."""

import asyncio
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from tests.e2e.daemon import children_of
from workers.contract.token_sampling import TokenSampling

AT_ONCE = 200
_IDLE_SECONDS = 10
_POLL_SECONDS = 0.1


class Guests:
    """Come many at once. Their prompts begin alike now and then, so that blocks are shared."""

    def __init__(self, client: EngineClient, vocab_size: int) -> None:
        self._client = client
        self._vocab_size = vocab_size
        self._draw = random.Random(4)
        self.finished = self.left = 0

    async def serve(self, count: int) -> None:
        """`count` requests, a tenth of which are aborted after their first news. Every other gets
        each token that it asked for."""
        waiting = iter(range(count))

        async def visit() -> None:
            for _ in waiting:
                await self._request()

        async with asyncio.TaskGroup() as guests:
            for _ in range(AT_ONCE):
                guests.create_task(visit())

    async def _request(self) -> None:
        params, rows = self._params(), self._draw.choice((1, 1, 1, 2))
        leaves = self._draw.random() < 0.1
        tokens = 0
        with await self._client.generate(params, ids=[self._prompt()], n=rows) as stream:
            while news := await stream.next():
                tokens += sum(output.token >= 0 for output in news)
                if leaves:
                    self.left += 1
                    return
        assert tokens == rows * (params.max_tokens or 0)
        self.finished += 1

    def _prompt(self) -> bytes:
        common, own = self._draw.randrange(80), self._draw.randrange(1, 20)
        ids = [7] * common + self._draw.choices(range(self._vocab_size), k=own)
        return np.array(ids, np.int32).tobytes()

    def _params(self) -> SamplingParams:
        draw = self._draw
        return SamplingParams(
            max_tokens=draw.randrange(1, 8),
            sampling=TokenSampling(
                temperature=draw.choice((0.0, 0.8)),
                top_p=draw.choice((1.0, 0.9)),
                presence_penalty=draw.choice((0.0, 0.0, 0.5)),
            ),
            logprobs=draw.choice((None, None, 2)),
            ignore_eos=True,
        )


async def until_idle(client: EngineClient) -> None:
    """Wait for a heartbeat with nothing in flight and every block free.

    Raises AssertionError with the last one if none comes.
    """
    last = client.beat
    for _ in range(int(_IDLE_SECONDS / _POLL_SECONDS)):
        await asyncio.sleep(_POLL_SECONDS)
        beat = client.beat
        if beat is last or beat is None:
            continue
        usage = beat.usage
        if not (usage.running or usage.waiting or usage.kv_blocks_used):
            return
    raise AssertionError(client.beat)


@dataclass(frozen=True)
class Footprint:
    """Bytes resident of each of the engine's processes, by module, and in use on the device."""

    resident: dict[str, int]
    device: int

    def growth_since(self, earlier: "Footprint") -> dict[str, int]:
        """By what, in bytes."""
        grown = {name: size - earlier.resident[name] for name, size in self.resident.items()}
        return grown | {"device": self.device - earlier.device}


def footprint(device: int = 0) -> Footprint:
    """Of the engine that this process has started; `device` is what the caller has measured."""
    # Daemons that other tests share are children of this process, too.
    own = {name: pids for name, pids in children_of(os.getpid()).items() if name != "server"}
    return Footprint({name: _resident(pid) for name, (pid,) in own.items()}, device)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
