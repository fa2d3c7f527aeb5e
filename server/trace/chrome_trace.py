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

_ARGUMENTS = ("step", "rows", "tokens", "prompt_tokens", "context_tokens")


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
    end = 0
    for step in steps:
        for name, begun, ended in _slices(step, step.times[stage], end):
            # A step may seem to begin before the end of the one before: see `StepTimes`.
            start, end = max(begun, end), max(ended, end)
            yield {
                "ph": "X",
                "name": name,
                "cat": "step",
                "pid": process,
                "tid": stage,
                "ts": start,
                "dur": end - start,
                "cname": _COLOURS[name],
                "args": {name: getattr(step, name) for name in _ARGUMENTS},
            }


def _slices(step: TracedStep, times: StepTimes, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of what a stage did for one step, one after another. It was idle since
    the `end` of its step before (0 if this is its first), unless there were no requests then."""
    if end and step.continued and times.start_us > end:
        yield "idle", end, times.start_us
    arrived = times.start_us + times.wait_us
    if times.wait_us:
        yield "waiting", times.start_us, arrived
    computed = arrived + times.busy_us
    yield kind_of(step), arrived, computed
    if times.transfer_us:
        yield "transfer", computed, times.end_us
