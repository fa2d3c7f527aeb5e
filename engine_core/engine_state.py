"""An engine's state, as its heartbeat carries it to the metrics.

To add a metric, add a field here and set it where it is counted: the API process shows every field
with an `EngineMetric` as `penstock_engine_NAME`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, get_type_hints

import msgspec


class EngineMetric(NamedTuple):
    """How a field is shown. `name` comes after `penstock_engine_`; counters are since start."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step: the bounds of `Beat.step_sizes`, those of vLLM's `iteration_tokens_total`."""


class Usage(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The scheduler's part."""

    running: Annotated[int, EngineMetric("gauge", "running_rows", "Rows in a slot.")]
    waiting: Annotated[int, EngineMetric("gauge", "waiting_rows", "Rows that wait for a slot.")]
    kv_blocks_used: Annotated[int, EngineMetric("gauge", "kv_blocks_used", "KV blocks in use.")] = 0
    kv_blocks_total: Annotated[int, EngineMetric("gauge", "kv_blocks", "KV blocks there are.")] = 0
    kv_blocks_peak: Annotated[
        int,
        EngineMetric(
            "gauge",
            "kv_blocks_peak",
            "Most KV blocks in use at once, since the start or the cache's last reset.",
        ),
    ] = 0
    queried_tokens: Annotated[
        int,
        EngineMetric(
            "counter", "prefix_queried_tokens", "Prompt tokens looked up in the prefix cache."
        ),
    ] = 0
    cached_tokens: Annotated[
        int, EngineMetric("counter", "cached_tokens", "Prompt tokens from the prefix cache.")
    ] = 0
    generated_tokens: Annotated[
        int, EngineMetric("counter", "generated_tokens", "Sampled tokens.")
    ] = 0
    preemptions: Annotated[
        int, EngineMetric("counter", "preemptions", "Rows that gave their KV blocks back.")
    ] = 0


class StageTime(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What one stage has done since its start, in seconds. The share of each in the time that has
    passed is its rate; what is missing from 1 is time in which there were no requests."""

    busy_s: Annotated[
        float,
        EngineMetric("counter", "busy_seconds", "Time in the stage's own layers and its head."),
    ]
    waiting_s: Annotated[
        float,
        EngineMetric(
            "counter",
            "waiting_seconds",
            "Time that a stage with a step waited for the stage before, for tokens or for a mask.",
        ),
    ]
    transfer_s: Annotated[
        float,
        EngineMetric("counter", "transfer_seconds", "Time to send activations or results on."),
    ]
    idle_s: Annotated[
        float,
        EngineMetric(
            "counter",
            "idle_seconds",
            "Time that the stage had no step, though there were requests.",
        ),
    ]


class Beat(msgspec.Struct, array_like=True, frozen=True, kw_only=True, tag="beat"):
    """The loop's heartbeat, once a second to every client.

    Times are in seconds. `expected_wait_s` is for a job of priority 0; 0 while it is unknown.
    `admitted_rows` and `admitted_tokens` are those of all jobs that have not ended.
    """

    usage: Usage
    stages: list[StageTime]
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
    step_tokens: Annotated[
        int, EngineMetric("counter", "step_tokens", "Tokens that steps computed.")
    ]
    steps_in_flight: Annotated[
        int, EngineMetric("gauge", "steps_in_flight", "Steps submitted and not finished.")
    ]
    last_step_age_s: Annotated[
        float,
        EngineMetric("gauge", "last_step_age_seconds", "Time since a step finished, or the start."),
    ]
    prompt_tokens: Annotated[int, EngineMetric("counter", "prompt_tokens", "Prompt tokens.")]
    step_sizes: list[int]
    """Steps by their size: of at most STEP_SIZES[i] tokens and more than the size before; the last
    entry counts all larger ones."""
    admitted_rows: int
    admitted_tokens: int


def _fields(kind: type[Usage] | type[Beat] | type[StageTime]) -> dict[str, EngineMetric]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field: metadata
        for field, hint in hints.items()
        for metadata in getattr(hint, "__metadata__", ())
    }


_USAGE, _BEAT, _STAGE = _fields(Usage), _fields(Beat), _fields(StageTime)

ENGINE_METRICS = (*_USAGE.values(), *_BEAT.values())

STAGE_METRICS = tuple(_STAGE.values())
"""One value a stage."""


def metric_values(beat: Beat) -> Iterator[float]:
    """The values of ENGINE_METRICS, in its order."""
    for field in _USAGE:
        yield getattr(beat.usage, field)
    for field in _BEAT:
        yield getattr(beat, field)


def stage_values(stage: StageTime) -> Iterator[float]:
    """The values of STAGE_METRICS, in its order."""
    for field in _STAGE:
        yield getattr(stage, field)
