"""The demo generator through the engine client: one stream against transformers, 16 against one.

The speed of a machine drifts, so the compared runs alternate, round after round, and each ratio is
taken within a round.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from benchmarks.processes import pipes, running_module
from benchmarks.report import Budget, Figure
from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from server.daemon.run import running_engine
from server.demo import GENERATOR_NAME, demo_models
from server.models.devices import available_cores
from server.settings.settings import child_environment
from workers.contract.token_sampling import GREEDY

_ONE_TO_TRANSFORMERS, _MANY_TO_ONE = 0.8, 4.0
_STREAMS = 16
_PROMPT, _NEW_TOKENS = 32, 128
_ROUNDS = 5
_PARAMS = SamplingParams(sampling=GREEDY, max_tokens=_NEW_TOKENS, ignore_eos=True)


class Task(msgspec.Struct, frozen=True):
    """For `transformers_peer`: continue `prompt` (token ids) by `new_tokens`."""

    prompt: list[int]
    new_tokens: int


class Done(msgspec.Struct, frozen=True):
    """Its answer: the new tokens, and how long they took."""

    tokens: list[int]
    seconds: float


class _Round(msgspec.Struct, frozen=True):
    """Tokens a second: transformers, one stream of ours, 16 streams together; and whether the
    first two gave the same tokens."""

    transformers: float
    one: float
    many: float
    same: bool


def measure() -> list[Figure]:
    """Medians over the rounds."""
    folder, threads = demo_models()[GENERATOR_NAME], available_cores()
    with running_module(
        "benchmarks.generation.transformers_peer",
        str(folder),
        str(threads),
        environment=child_environment(compute_threads=threads),
        piped=True,
    ) as peer:
        rounds = asyncio.run(_rounds(folder, peer))
    return _figures(rounds, threads)


async def _rounds(folder: Path, peer: subprocess.Popen[str]) -> list[_Round]:
    async with running_engine(folder) as engine:
        await _round(engine.client, peer, 0)  # warms both up
        rounds: list[_Round] = []
        for number in range(1, _ROUNDS + 1):
            print(f"  round {number} of {_ROUNDS}", file=sys.stderr, flush=True)
            rounds.append(await _round(engine.client, peer, number))
        return rounds


async def _round(client: EngineClient, peer: subprocess.Popen[str], seed: int) -> _Round:
    # New prompts in every round: none is in the prefix cache.
    prompts = np.random.default_rng(seed).integers(8, 4000, (1 + _STREAMS, _PROMPT), np.int32)
    theirs = await asyncio.to_thread(_ask, peer, Task(prompts[0].tolist(), _NEW_TOKENS))
    started = time.perf_counter()
    ours = await _continue(client, prompts[0].tobytes())
    alone = time.perf_counter()
    await asyncio.gather(*[_continue(client, prompt.tobytes()) for prompt in prompts[1:]])
    together = time.perf_counter()
    return _Round(
        transformers=_NEW_TOKENS / theirs.seconds,
        one=_NEW_TOKENS / (alone - started),
        many=_STREAMS * _NEW_TOKENS / (together - alone),
        same=ours == theirs.tokens,
    )


async def _continue(client: EngineClient, prompt: bytes) -> list[int]:
    stream = await client.generate(_PARAMS, ids=[prompt])
    tokens: list[int] = []
    while updates := await stream.next():
        tokens += [output.token for output in updates]
    return tokens


def _ask(peer: subprocess.Popen[str], task: Task) -> Done:
    stdin, stdout = pipes(peer)
    stdin.write(msgspec.json.encode(task).decode() + "\n")
    stdin.flush()
    return msgspec.json.decode(stdout.readline(), type=Done)


def _figures(rounds: list[_Round], threads: int) -> list[Figure]:
    ones = [each.one / each.transformers for each in rounds]
    manies = [each.many / each.one for each in rounds]
    same = sum(each.same for each in rounds)
    setting = f"{_PROMPT} + {_NEW_TOKENS} tokens, greedy, float32, {threads} threads"
    one, many = Budget(_ONE_TO_TRANSFORMERS, at_least=True), Budget(_MANY_TO_ONE, at_least=True)
    return [
        Figure("transformers", median(r.transformers for r in rounds), "tokens/s", None, setting),
        Figure("one stream", median(each.one for each in rounds), "tokens/s"),
        Figure(f"{_STREAMS} streams", median(each.many for each in rounds), "tokens/s"),
        Figure("one stream to transformers", median(ones), "x", one, _listed(ones)),
        Figure(f"{_STREAMS} streams to one", median(manies), "x", many, _listed(manies)),
        Figure("rounds with the same text", same, f"of {len(rounds)}"),
    ]


def _listed(ratios: list[float]) -> str:
    return "median of " + ", ".join(f"{ratio:.2f}" for ratio in ratios)
