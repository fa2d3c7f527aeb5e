"""One measurement: its figures, or why there is none.

An engine's heartbeats say what it counted during a run, and how its stages spent their time. The
*bubble* of a stage is its share of time without computing, from the start of its first step to the
end of its last. That of a pipeline is its worst stage's.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import count
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.messages import Beat, StageTime, Usage
from server.errors import CommandError

CountsT = TypeVar("CountsT", Usage, StageTime)
Figures = dict[str, float]
"""By names such as `ttft_p50_ms`, which end with the unit."""

_UNITS = {
    "tokens_per_s": "tok/s",
    "requests_per_s": "req/s",
    "sequences_per_s": "seq/s",
    "questions_per_s": "questions/s",
    "_ms": "ms",
    "seconds": "s",
}


class BenchError(CommandError):
    """A workload cannot be measured, or an answer is not the requested one. One line says why."""


def unit_of(figure: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if figure.endswith(ending)), "")


def is_rate(figure: str) -> bool:
    """True if more is better."""
    return figure.endswith("_per_s")


def rates(counts: Mapping[str, float], seconds: float) -> Figures:
    """The counts, and each of them a second as NAME_per_s."""
    return {**counts, **{f"{name}_per_s": count / seconds for name, count in counts.items()}}


def milliseconds(name: str, seconds: npt.ArrayLike) -> Figures:
    """Mean, median and 99th percentile of `seconds`, if any, as NAME_mean_ms and so on."""
    times = np.asarray(seconds) * 1e3
    if not times.size:
        return {}
    median, high = np.percentile(times, [50, 99]).tolist()
    return {
        f"{name}_mean_ms": float(times.mean()),
        f"{name}_p50_ms": median,
        f"{name}_p99_ms": high,
    }


_SHARES = ("busy", "waiting", "transfer", "idle")
_BEAT_POLL_SECONDS = 0.02
_MISSED_BEATS_SECONDS = 30.0


async def next_beat(engines: Engines) -> Beat:
    """Wait for the engines' next heartbeats, with all that they have counted together. Raises
    BenchError."""
    return reduce(_together, await asyncio.gather(*map(_next_beat, engines)))


def _together(one: Beat, other: Beat) -> Beat:
    return msgspec.structs.replace(
        one,
        usage=_added(one.usage, other.usage),
        stages=[_added(*pair) for pair in zip(one.stages, other.stages, strict=True)],
        steps=one.steps + other.steps,
        step_tokens=one.step_tokens + other.step_tokens,
    )


def _added(one: CountsT, other: CountsT) -> CountsT:
    fields = one.__struct_fields__
    return type(one)(**{name: getattr(one, name) + getattr(other, name) for name in fields})


async def _next_beat(client: EngineClient) -> Beat:
    last, deadline = client.beat, time.monotonic() + _MISSED_BEATS_SECONDS
    while client.beat is last or client.beat is None:
        if client.dead or time.monotonic() > deadline:
            raise BenchError("the engine is silent")
        await asyncio.sleep(_BEAT_POLL_SECONDS)
    return client.beat


def counted(before: Beat, after: Beat, seconds: float) -> Figures:
    """The engine's counters between two heartbeats, which are `seconds` apart."""
    steps, first, last = after.steps - before.steps, before.stages[-1], after.stages[-1]
    busy, idle = last.busy_s - first.busy_s, last.idle_s - first.idle_s
    return {
        "steps": steps,
        "idle_share": idle / (idle + busy) if busy else 0.0,
        "step_mean_ms": seconds / steps * 1e3,
        "computed_tokens": after.step_tokens - before.step_tokens,
        "cached_tokens": after.usage.cached_tokens - before.usage.cached_tokens,
        "preemptions": after.usage.preemptions - before.usage.preemptions,
        **stage_figures(before.stages, after.stages),
    }


def stage_figures(before: Sequence[StageTime], after: Sequence[StageTime]) -> Figures:
    """The shares of each stage's time between two heartbeats at which no step was in flight, and
    the seconds that they are shares of. Empty for one stage, or without a step."""
    figures: Figures = {}
    bubbles = [0.0]
    for stage, (first, last) in enumerate(zip(before, after, strict=True)):
        # A stage's steps follow each other: these times and the gaps, which are idle, are all.
        spent = {name: getattr(last, f"{name}_s") - getattr(first, f"{name}_s") for name in _SHARES}
        if len(after) == 1 or not (seconds := sum(spent.values())):
            return {}
        figures |= {_name(stage, name): spent[name] / seconds for name in _SHARES}
        figures[f"stage_{stage}_seconds"] = seconds
        bubbles.append(1 - spent["busy"] / seconds)
    return {"bubble_share": max(bubbles)} | figures


def stage_lines(figures: Figures) -> Iterator[str]:
    """A line a stage, for people."""
    for stage in count():
        if _name(stage, "busy") not in figures:
            return
        shares = ", ".join(f"{name} {figures[_name(stage, name)]:.1%}" for name in _SHARES)
        yield f"stage {stage}: {shares} of {figures[f'stage_{stage}_seconds']:.2f} s"


def _name(stage: int, share: str) -> str:
    return f"stage_{stage}_{share}_share"
