"""Steps as a trace in Chrome's format, which https://ui.perfetto.dev and chrome://tracing show: a
process a model, a track a stage, a slice for each part of a step.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine_core.messages import TracedStep
from workers.contract.messages import StepTimes

_COLOURS = {
    "prefill": "thread_state_running",
    "decode": "rail_response",
    "mixed": "rail_load",
    "transfer": "thread_state_iowait",
    "waiting": "bad",
    "idle": "terrible",
}
"""By the name of a slice: chrome://tracing names its colours. Perfetto ignores them, and gives each
name of a slice a colour of its own."""


def chrome_trace(
    steps: Mapping[str, Sequence[TracedStep]], devices: Mapping[str, Sequence[str]]
) -> bytes:
    """The trace as JSON, of `steps` by model and the `devices` of each model's stages. Times are in
    microseconds of the host's monotonic clock."""
    events: list[dict[str, Any]] = []
    for process, (model, of_model) in enumerate(steps.items(), 1):
        events.append(_named("process_name", process, 0, model))
        for stage, device in enumerate(devices[model]):
            events.append(_named("thread_name", process, stage, f"stage {stage} ({device})"))
            events += _track(process, stage, of_model)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def kind_of(step: TracedStep) -> str:
    """`prefill`, `decode`, or `mixed` for a step of both."""
    if not step.prompt_tokens:
        return "decode"
    return "prefill" if step.prompt_tokens == step.tokens else "mixed"


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _track(process: int, stage: int, steps: Sequence[TracedStep]) -> Iterator[dict[str, Any]]:
    end: int | None = None
    for step in steps:
        times = step.times[stage]
        for name, start, duration in _slices(kind_of(step), times, end if step.continued else None):
            yield {
                "ph": "X",
                "name": name,
                "cat": "step",
                "pid": process,
                "tid": stage,
                "ts": start,
                "dur": duration,
                "cname": _COLOURS[name],
                "args": _arguments(step),
            }
        end = times.end_us


def _slices(kind: str, times: StepTimes, end: int | None) -> Iterator[tuple[str, int, int]]:
    """Name, start and duration of what a stage did for one step, one after another, without gaps.
    The stage was idle since the `end` of its step before; None where it had no requests."""
    if end is not None and times.start_us > end:
        yield "idle", end, times.start_us - end
    arrived = times.start_us + times.wait_us
    if times.wait_us:
        yield "waiting", times.start_us, times.wait_us
    yield kind, arrived, times.busy_us
    if times.transfer_us:
        yield "transfer", arrived + times.busy_us, times.transfer_us


def _arguments(step: TracedStep) -> dict[str, int]:
    return {
        "step": step.step,
        "rows": step.rows,
        "tokens": step.tokens,
        "prompt_tokens": step.prompt_tokens,
        "context_tokens": step.context_tokens,
    }
