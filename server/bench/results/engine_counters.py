"""What an engine counted during a run, by its heartbeats."""

import asyncio
import time

from engine_core.client.engine_client import EngineClient
from engine_core.engine_state import Beat
from server.bench.results.measurement import BenchError, Figures
from server.bench.results.stage_shares import stage_figures

_BEAT_POLL_SECONDS = 0.02
_MISSED_BEATS_SECONDS = 30.0


async def next_beat(client: EngineClient) -> Beat:
    """The engine's next heartbeat: the counters after everything that has been received so far.

    Raises BenchError if none comes.
    """
    last, deadline = client.beat, time.monotonic() + _MISSED_BEATS_SECONDS
    while client.beat is last or client.beat is None:
        if client.dead or time.monotonic() > deadline:
            raise BenchError("the engine is silent")
        await asyncio.sleep(_BEAT_POLL_SECONDS)
    return client.beat


def counted(before: Beat, after: Beat, seconds: float) -> Figures:
    """What the engine counted between two heartbeats."""
    steps, first, last = after.steps - before.steps, before.stages[-1], after.stages[-1]
    busy, idle = last.busy_s - first.busy_s, last.idle_s - first.idle_s
    return {
        "steps": steps,
        "idle_share": idle / (idle + busy) if busy else 0.0,
        "step_mean_ms": seconds / steps * 1e3,
        "cached_tokens": after.usage.cached_tokens - before.usage.cached_tokens,
        "preemptions": after.usage.preemptions - before.usage.preemptions,
        **stage_figures(before.stages, after.stages),
    }
