"""An engine's state, as its heartbeat carries it to the metrics.

To add a metric, add a field here and set it where it is counted: the API process shows every field
as `penstock_engine_NAME`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, get_type_hints

import msgspec


class EngineMetric(NamedTuple):
    """How a field is shown. `name` comes after `penstock_engine_`; counters are since start."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str


class Usage(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The scheduler's part."""

    running: Annotated[int, EngineMetric("gauge", "running_rows", "Rows in a slot.")]
    waiting: Annotated[int, EngineMetric("gauge", "waiting_rows", "Rows that wait for a slot.")]
    kv_blocks_used: Annotated[int, EngineMetric("gauge", "kv_blocks_used", "KV blocks in use.")] = 0
    kv_blocks_total: Annotated[int, EngineMetric("gauge", "kv_blocks", "KV blocks there are.")] = 0
    cached_tokens: Annotated[
        int, EngineMetric("counter", "cached_tokens", "Prompt tokens from the prefix cache.")
    ] = 0
    generated_tokens: Annotated[
        int, EngineMetric("counter", "generated_tokens", "Sampled tokens.")
    ] = 0
    preemptions: Annotated[
        int, EngineMetric("counter", "preemptions", "Rows that gave their KV blocks back.")
    ] = 0


class Beat(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="beat"):
    """The loop's heartbeat, once a second to every client.

    Times are in seconds. The last stage was idle while it had no step although another one was in
    flight or due. `expected_wait_s` is for a job of priority 0; 0 while it is unknown.
    """

    usage: Usage
    expected_wait_s: Annotated[
        float,
        EngineMetric(
            "gauge",
            "expected_wait_seconds",
            "How long a request that comes now would wait until it begins.",
        ),
    ]
    stalled_s: Annotated[
        float, EngineMetric("gauge", "stalled_seconds", "Age of the oldest step in flight.")
    ]
    steps: Annotated[int, EngineMetric("counter", "steps", "Steps.")]
    prompt_tokens: Annotated[int, EngineMetric("counter", "prompt_tokens", "Prompt tokens.")]
    busy_s: Annotated[
        float, EngineMetric("counter", "busy_seconds", "Time that steps took the last stage.")
    ]
    idle_s: Annotated[
        float,
        EngineMetric("counter", "idle_seconds", "Time that the last stage waited for a step."),
    ]


def _fields(kind: type[Usage] | type[Beat]) -> dict[str, EngineMetric]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field: metadata
        for field, hint in hints.items()
        for metadata in getattr(hint, "__metadata__", ())
    }


_USAGE, _BEAT = _fields(Usage), _fields(Beat)

ENGINE_METRICS = (*_USAGE.values(), *_BEAT.values())


def metric_values(beat: Beat) -> Iterator[float]:
    """The values of ENGINE_METRICS, in its order."""
    for field in _USAGE:
        yield getattr(beat.usage, field)
    for field in _BEAT:
        yield getattr(beat, field)
