"""A daemon under overload: how much it serves, how long requests wait, how fast it refuses."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median

import msgspec

from benchmarks.daemon.process_stats import children_of, cpu_seconds
from benchmarks.daemon.running_daemon import RunningDaemon, on_core, running_daemon
from benchmarks.http import wrk
from benchmarks.report import Budget, Figure, NotMeasuredError
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import EMBEDDER_NAME, demo_models

_GOODPUT, _LATEST_START, _REFUSAL_MS = 0.9, 1.2, 100
_LOADS = (2, 10)
_ROUNDS, _SECONDS, _WARM_UP_SECONDS = 3, 20, 4
_BOUND_SECONDS, _STEP_TOKENS = 5, 1024
_CONNECTIONS, _PAUSE_MS = 32, 1000
_TEXT = "The gate opens, water falls, and the turbine turns; the river goes on below it. " * 12
_BODY = {"input": _TEXT}


class _Run(msgspec.Struct, frozen=True):
    """One load: what wrk measured, and the CPU seconds of all of the daemon's processes."""

    offer: wrk.Offer
    cpu: float

    @property
    def taken_a_cpu_second(self) -> float:
        """What the core could do if nothing else ran on it."""
        return self.offer.taken / self.cpu


class _Round(msgspec.Struct, frozen=True):
    """The peak, and each load right behind it."""

    peak: _Run
    loads: dict[int, _Run]


@contextmanager
def embedder_on_one_core(*arguments: str) -> Generator[RunningDaemon]:
    """A daemon with the demo embedder and `arguments`; what the block starts is on another core.
    Raises NotMeasuredError."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise NotMeasuredError("it needs two cores: one for the daemon, one for wrk")
    words = (str(demo_models()[EMBEDDER_NAME]), "--threads", "1", *arguments)
    with on_core(cores[0]), running_daemon(*words) as daemon, on_core(cores[1]):
        yield daemon


def measure() -> list[Figure]:
    """Each load beside the peak before it."""
    bounds = f"--max-step-tokens {_STEP_TOKENS} --max-queue-seconds {_BOUND_SECONDS}"
    with embedder_on_one_core(*bounds.split()) as daemon:
        _peak(daemon, _WARM_UP_SECONDS)
        rounds = [_round(daemon) for _ in range(_ROUNDS)]
    tokenizer = Tokenizer.load(demo_models()[EMBEDDER_NAME])
    (ids,) = tokenizer.encode([_TEXT], add_special_tokens=True)
    return _figures(rounds, texts_a_step=_STEP_TOKENS // (len(ids) // 4))


def _round(daemon: RunningDaemon) -> _Round:
    peak = _peak(daemon, _SECONDS)
    rate = peak.offer.taken_per_second
    return _Round(peak, {load: _overload(daemon, load, rate) for load in _LOADS})


def _peak(daemon: RunningDaemon, seconds: int) -> _Run:
    """As many requests at once as fill its steps, none of which it refuses."""
    return _run(daemon, _CONNECTIONS, seconds, pause_ms=0)


def _overload(daemon: RunningDaemon, load: int, peak: float) -> _Run:
    """`load` times the peak, whatever becomes of it: each connection pauses after its answer, and
    there are enough beside those whose requests wait."""
    waiting = peak * _BOUND_SECONDS
    pausing = load * peak * _PAUSE_MS / 1e3
    return _run(daemon, round(waiting + pausing), _SECONDS, pause_ms=_PAUSE_MS)


def _run(daemon: RunningDaemon, connections: int, seconds: int, pause_ms: int) -> _Run:
    before = _cpu_seconds(daemon)
    offer = wrk.offer(
        f"{daemon.url}/v1/embeddings",
        _BODY,
        connections=connections,
        seconds=seconds,
        pause_ms=pause_ms,
    )
    return _Run(offer, _cpu_seconds(daemon) - before)


def _cpu_seconds(daemon: RunningDaemon) -> float:
    return sum(map(cpu_seconds, children_of(daemon.pid)))


def _figures(rounds: list[_Round], texts_a_step: int) -> list[Figure]:
    peaks = [one.peak.offer.taken_per_second for one in rounds]
    note = f"; {_CONNECTIONS} connections, {len(_TEXT.split())} words each"
    figures = [_figure("peak", peaks, "requests/s", None, note)]
    for load in _LOADS:
        figures += _load_figures(rounds, load, texts_a_step)
    return figures


def _load_figures(rounds: list[_Round], load: int, texts_a_step: int) -> list[Figure]:
    runs = [one.loads[load] for one in rounds]
    offered = median([run.offer.offered_per_second for run in runs])
    peaks = [one.peak for one in rounds]
    pairs = list(zip(runs, peaks, strict=True))
    goodput = [run.offer.taken_per_second / peak.offer.taken_per_second for run, peak in pairs]
    of_cpu = [run.taken_a_cpu_second / peak.taken_a_cpu_second for run, peak in pairs]
    # An answer comes at the end of a step, which is full: it began that much earlier.
    starts = [
        run.offer.taken_max_us / 1e6 - texts_a_step / peak.offer.taken_per_second
        for run, peak in pairs
    ]
    starts = [start / _BOUND_SECONDS for start in starts]
    refusals = [run.offer.refused_p95_us / 1e3 for run in runs]
    at_least = Budget(_GOODPUT, at_least=True)
    return [
        _figure(f"{load} x: goodput to the peak", goodput, "x", at_least, f"; {offered:,.0f}/s"),
        _figure(f"{load} x: goodput of a CPU second to the peak's", of_cpu, "x", at_least),
        _figure(f"{load} x: latest start to the bound", starts, "x", Budget(_LATEST_START)),
        _figure(f"{load} x: refusals, p95", refusals, "ms", Budget(_REFUSAL_MS)),
    ]


def _figure(
    name: str, values: list[float], unit: str, budget: Budget | None, note: str = ""
) -> Figure:
    return Figure(name, median(values), unit, budget, f"median of {_listed(values)}{note}")


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
