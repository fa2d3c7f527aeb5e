"""The demo embedder on a CPU beside sentence-transformers, Infinity and fastembed, in float32.

Each program gets one thread for its model, and the same texts in turn, round after round.
`INFINITY_PYTHON` and `FASTEMBED_PYTHON` name interpreters in whose environments these two are
installed, fastembed with onnx, torch and transformers.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from random import Random
from statistics import median

import msgspec
import numpy as np

from benchmarks.daemon.process_stats import children_of, cpu_seconds
from benchmarks.processes import pipes, running_command
from benchmarks.report import Budget, Figure
from server.daemon.run import RunningEngine, running_engine
from server.demo import EMBEDDER_NAME, demo_models
from server.models.model_setup import EngineOptions
from server.settings.settings import child_environment

_TO_THE_BEST = 1.3
_ROUNDS, _THREADS = 5, 1
_WORDS = "the river gate falls turbine turns quickly history science music stone bridge".split()
_MOST_WORDS = 250


class Embedded(msgspec.Struct, frozen=True):
    """Seconds and CPU seconds of a run, and its first vector."""

    seconds: float
    cpu: float
    first: list[float]


def measure() -> list[Figure]:
    """Each program's CPU time for a text, and that of the best of the others to ours."""
    folder = demo_models()[EMBEDDER_NAME]
    pythons = {
        "sentence_transformers": sys.executable,
        "infinity": os.environ.get("INFINITY_PYTHON"),
        "fastembed": os.environ.get("FASTEMBED_PYTHON"),
    }
    environment = child_environment(compute_threads=_THREADS, tokenizer_threads=_THREADS)
    with ExitStack() as stack:
        peers = {
            name: stack.enter_context(running_peer(python, name, folder, _THREADS, environment))
            for name, python in pythons.items()
            if python
        }
        return asyncio.run(_figures(folder, peers))


def _texts() -> dict[str, list[str]]:
    """Texts of words that are a token each: of one length, and of lengths as in a collection."""
    random = Random(1)

    def text(words: float) -> str:
        return " ".join(random.choices(_WORDS, k=min(max(round(words), 3), _MOST_WORDS)))

    return {
        "128 tokens": [text(126) for _ in range(96)],
        "32 tokens": [text(30) for _ in range(256)],
        "many lengths": [text(random.lognormvariate(3.6, 0.8)) for _ in range(192)],
    }


async def _figures(folder: Path, peers: Mapping[str, subprocess.Popen[str]]) -> list[Figure]:
    options = EngineOptions(log_level="warning", threads=_THREADS)
    figures: list[Figure] = []
    async with running_engine(folder, options) as engine:
        for kind, texts in _texts().items():
            runs: dict[str, list[Embedded]] = {name: [] for name in ("penstock", *peers)}
            for number in range(_ROUNDS + 1):
                own = await _embed(engine, texts)
                of_peers = {name: embed_elsewhere(peer, texts) for name, peer in peers.items()}
                for name, run in {"penstock": own, **of_peers}.items():
                    np.testing.assert_allclose(run.first, own.first, atol=1e-4, err_msg=name)
                    if number:  # the first warms up
                        runs[name].append(run)
            figures += _of_kind(kind, runs, len(texts))
    return figures


def _of_kind(kind: str, runs: Mapping[str, list[Embedded]], texts: int) -> list[Figure]:
    costs = {name: median(run.cpu for run in own) * 1e3 / texts for name, own in runs.items()}
    figures = [
        Figure(
            f"{kind}: {name}, CPU time of a text",
            cost,
            "ms",
            None,
            f"{texts / median(run.seconds for run in runs[name]):.0f} texts/s",
        )
        for name, cost in costs.items()
    ]
    own = costs.pop("penstock")
    best = min(costs, key=lambda name: costs[name])
    budget = Budget(_TO_THE_BEST, at_least=True)
    name = f"{kind}: the best of the others to ours"
    return [*figures, Figure(name, costs[best] / own, "x", budget, best)]


async def _embed(engine: RunningEngine, texts: list[str]) -> Embedded:
    children = children_of(os.getpid())
    started, cpu = time.perf_counter(), sum(map(cpu_seconds, children))
    found = await engine.client.encode(texts=texts)
    seconds, cpu = time.perf_counter() - started, sum(map(cpu_seconds, children)) - cpu
    first = found.values[0] / np.linalg.norm(found.values[0])
    return Embedded(seconds, cpu, first.tolist())


def running_peer(
    python: str, name: str, folder: Path, number: int, environment: Mapping[str, str]
) -> AbstractContextManager[subprocess.Popen[str]]:
    """The other program `name` with the model in `folder` (`embedding_peer.py`)."""
    program = str(Path(__file__).parent / "embedding_peer.py")
    command = [python, program, name, str(folder), str(number)]
    return running_command(command, environment, stdout=subprocess.PIPE)


def embed_elsewhere(peer: subprocess.Popen[str], texts: Sequence[object]) -> Embedded:
    """What it took the other program to embed `texts`."""
    to_peer, from_peer = pipes(peer)
    to_peer.write(msgspec.json.encode(texts).decode() + "\n")
    to_peer.flush()
    return msgspec.json.decode(from_peer.readline(), type=Embedded)
