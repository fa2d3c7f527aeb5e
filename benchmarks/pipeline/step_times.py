"""What steps take, as measured: the only thing that a simulated stage knows of its GPU."""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.loop.reports import StepWork
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import Coefficients

GPUName = Literal["h200", "h100", "a100"]

BUILT_IN = Path(__file__).with_name("h200_llama8b.json")


class StepTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one model on one kind of GPU, in milliseconds.

    Tables are pairs (number, ms), ascending, read by linear interpolation.

    shape, gpu       what was measured: of `server/bench/shapes`, and of `gpus.py`
    num_layers       what `layers_ms`, `attended_ms` and `context_ms` are for
    layers_ms        all layers without attention, by tokens of the step
    attended_ms      attention of prompts: for each pair of a token and one that it attends to
    context_ms       attention of decode rows: for each token of their contexts
    skewed_row_ms    for each decode row of a step in which one context is so much longer than the
                     others that all are split (`min_splits` of workers/attention/backends/triton)
    head_ms          LM head and sampling, by sampled rows
    hop_ms           from one stage's last kernel to the next one's first, with `hop_token_ms` for
                     each token
    token_return_ms  from the last stage's sampled tokens to the first stage's look-up
    launch_ms        from the engine core's message to the first kernel of an idle first stage
    result_ms        from the last kernel to the result in the engine core
    core_step_ms     the engine core's own time a step, with `core_row_ms` for each row; half of it
                     before the step is sent
    """

    name: str
    shape: str
    gpu: GPUName
    num_layers: int
    layers_ms: list[tuple[float, float]]
    attended_ms: float
    context_ms: float
    skewed_row_ms: float
    head_ms: list[tuple[float, float]]
    hop_ms: float
    hop_token_ms: float
    token_return_ms: float
    launch_ms: float
    result_ms: float
    core_step_ms: float
    core_row_ms: float

    def layer(self, work: StepWork, skewed_rows: int = 0) -> float:
        """Seconds of one layer."""
        layers = interpolated(self.layers_ms, work.tokens) + self.skewed_row_ms * skewed_rows
        layers += self.attended_ms * work.attended + self.context_ms * work.contexts
        return layers / self.num_layers / 1e3

    def head(self, rows: int) -> float:
        """Seconds of the LM head and sampling."""
        return interpolated(self.head_ms, rows) / 1e3

    def coefficients(self, layers: int) -> Coefficients:
        """What a scheduler knows of a stage with so many layers once it has seen many steps: the
        line through the table, from its first entry with the slope of its last two."""
        share = layers / self.num_layers / 1e3
        (low, below), (high, above) = self.layers_ms[-2:]
        return Coefficients(
            step=self.layers_ms[0][1] * share,
            token=(above - below) / (high - low) * share,
            attended=self.attended_ms * share,
            context=self.context_ms * share,
        )

    def hop(self, batch: DecodeBatch) -> float:
        """From one stage to the next, in seconds."""
        return (self.hop_ms + self.hop_token_ms * batch.num_tokens) / 1e3

    def core(self, batch: DecodeBatch) -> float:
        """The engine core's time for the step, in seconds."""
        return (self.core_step_ms + self.core_row_ms * len(batch.requests)) / 1e3


def read_step_times(path: Path = BUILT_IN) -> StepTimes:
    """The times in a JSON file; those of an 8B Llama on H200 by default.

    Raises OSError or msgspec.ValidationError.
    """
    return msgspec.json.decode(path.read_bytes(), type=StepTimes)


def interpolated(table: Sequence[tuple[float, float]], number: float) -> float:
    """The table's value at `number`; 0 at 0, beyond its ends in proportion to the last entry."""
    if not number:
        return 0.0
    index = bisect_left(table, (number,))
    if index == 0:
        return table[0][1]
    if index == len(table):
        last, value = table[-1]
        return value * number / last
    (low, below), (high, above) = table[index - 1 : index + 1]
    return below + (above - below) * (number - low) / (high - low)
