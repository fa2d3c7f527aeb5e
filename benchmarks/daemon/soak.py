"""`python -m benchmarks.daemon.soak`: workers' memory under steps of every size.

Clients of both models send prompts, and lists of texts, of lengths drawn at random, each the next
one as soon as it is answered. Asked of a worker: at the end at most 1.5 times what it had in memory
after the warm-up, and at most 1 MB a minute more in the last third.
"""

import argparse
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.attacks.target import EMBEDDER, GENERATOR, Target
from benchmarks.daemon.process_stats import children_of, cpu_seconds, memory_of
from benchmarks.daemon.running_daemon import running_daemon
from server.bench.machine import this_machine
from server.demo import demo_models

_SAMPLE_SECONDS, _LINE_SECONDS = 5.0, 60.0
_MOST_WORDS, _MOST_TEXTS, _MOST_TOKENS = 200, 24, 48
_WORDS = ("the", "file", "a", "number", "is", "and", "name", "of")
_RATIO, _MB_A_MINUTE = 1.5, 1.0


class _Sample(NamedTuple):
    """Minutes since the start, MB resident and CPU seconds used by a worker, and its requests."""

    minute: float
    resident: float
    cpu: float
    answers: int


class _Load:
    """Clients of one model, who go on until the process ends."""

    def __init__(self, target: Target, path: str, draw: Callable[[random.Random], Any]) -> None:
        self._target, self._path, self._draw = target, path, draw
        self.answers = self.failures = 0

    def start(self, clients: int) -> None:
        for seed in range(clients):
            threading.Thread(target=self._ask, args=(random.Random(seed),), daemon=True).start()

    def _ask(self, drawn: random.Random) -> None:
        while True:
            if self._target.ask(self._path, self._draw(drawn)) == 200:
                self.answers += 1
            else:
                self.failures += 1
                time.sleep(1)


def main() -> None:
    """Print each worker's memory minute by minute, then what it came to."""
    options = _parser().parse_args()
    print(this_machine().header())
    environment: Mapping[str, str] = os.environ
    if options.source is not None:
        environment = {**os.environ, "PYTHONPATH": str(options.source)}
    with running_daemon(environment=environment) as daemon:
        target = Target(urlsplit(daemon.url).port or 80)
        loads = {
            GENERATOR: _Load(target, "/v1/completions", _completion),
            EMBEDDER: _Load(target, "/v1/embeddings", _texts),
        }
        workers = [pid for pid, name in children_of(daemon.pid).items() if name == "workers"]
        pids = dict(zip(demo_models(), workers, strict=True))
        ready = {name: memory_of(pid).rss / 1e6 for name, pid in pids.items()}
        for load in loads.values():
            load.start(options.clients)
        samples = _watch(pids, loads, options.minutes)
        # Before the daemon ends, whose clients go on.
        for name, taken in samples.items():
            print(_verdict(name, ready[name], taken, options.warm_up, loads[name].failures))


def _watch(
    pids: Mapping[str, int], loads: Mapping[str, _Load], minutes: float
) -> dict[str, list[_Sample]]:
    """Samples of each worker for so many minutes, a line a minute."""
    samples: dict[str, list[_Sample]] = {name: [] for name in pids}
    started = line = time.monotonic()
    while (now := time.monotonic()) < started + 60 * minutes:
        for name, pid in pids.items():
            cpu, memory = cpu_seconds(pid), memory_of(pid).rss / 1e6
            minute = (now - started) / 60
            samples[name].append(_Sample(minute, memory, cpu, loads[name].answers))
        if now >= line:
            line += _LINE_SECONDS
            newest = {name: taken[-1] for name, taken in samples.items()}
            cells = [f"{name} {s.resident:6.0f} MB {s.answers:6}" for name, s in newest.items()]
            print(f"{(now - started) / 60:5.1f} min  " + "   ".join(cells), flush=True)
        time.sleep(_SAMPLE_SECONDS)
    return samples


def _verdict(name: str, ready: float, samples: list[_Sample], warm_up: float, failures: int) -> str:
    """What a worker's memory came to; that after the warm-up, and at the end, are of a minute."""
    end = samples[-1].minute
    warm = [s.resident for s in samples if warm_up - 1 <= s.minute <= warm_up]
    last = [s.resident for s in samples if s.minute >= end - 1]
    third = [s for s in samples if s.minute >= end * 2 / 3]
    growth = float(np.polyfit([s.minute for s in third], [s.resident for s in third], 1)[0])
    ratio, peak = max(last) / max(warm), max(s.resident for s in samples)
    is_met = ratio <= _RATIO and growth <= _MB_A_MINUTE
    milliseconds = 1e3 * (samples[-1].cpu - samples[0].cpu) / max(1, samples[-1].answers)
    return (
        f"{name}: {ready:.0f} MB when ready, {max(warm):.0f} after {warm_up:g} min, "
        f"{max(last):.0f} at the end ({ratio:.2f} times), peak {peak:.0f}, {growth:+.2f} MB/min in "
        f"the last third; {samples[-1].answers} answers, {failures} failures, "
        f"{milliseconds:.1f} ms of CPU each: {'pass' if is_met else 'MISS'}"
    )


def _completion(draw: random.Random) -> dict[str, Any]:
    prompt = _words(draw, draw.randint(1, _MOST_WORDS))
    sampling = {"seed": draw.randrange(1 << 30), "n": draw.choice((1, 1, 1, 4))}
    return {"model": GENERATOR, "prompt": prompt, "max_tokens": draw.randint(1, _MOST_TOKENS)} | (
        sampling
    )


def _texts(draw: random.Random) -> dict[str, Any]:
    texts = [
        _words(draw, draw.randint(1, _MOST_WORDS)) for _ in range(draw.randint(1, _MOST_TEXTS))
    ]
    return {"model": EMBEDDER, "input": texts}


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(_WORDS, k=count))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: 30)")
    parser.add_argument("--warm-up", type=float, default=3.0, help="minutes of it (default: 3)")
    parser.add_argument("--clients", type=int, default=4, help="of each model (default: 4)")
    parser.add_argument("--source", type=Path, help="the daemon of another checkout")
    return parser


if __name__ == "__main__":
    main()
