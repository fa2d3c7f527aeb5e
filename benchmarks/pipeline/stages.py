"""The stages of a pipeline: their GPUs' times, their layers, and what lies between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from benchmarks.pipeline.step_times import StepTimes
from engine_core.executor.partition import OTHER_BYTES, choose_layers
from engine_core.loop.reports import StepWork
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import Coefficients
from server.models.stage_memory import weight_bytes
from workers.contract.config import ExecutionConfig
from workers.contract.share import PartCosts, StageCosts, shares_of
from workers.device.tuning import SKEWED_MIN_CONTEXT, SKEWED_MIN_ROWS, SKEWED_SHARE

_DECODES = StepWork(64, contexts=64 * 256)
_PROMPTS, _ENDS = StepWork(2048, attended=2048 * 256), StepWork(4)
"""The steps by whose times workers divide layers (`workers/stage/stage_costs.py`), and the
tokens of the prompts that the last layer computes."""


_OF_LAST_TOKENS = 0.9
"""The part of a layer behind its queries, keys and values, in which the last layer spares most."""


class Link(NamedTuple):
    """A link between hosts: seconds of a message, and of each token's hidden state."""

    latency: float
    token: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order, each with its GPU's `times`, its `layers`, and the number of its host."""

    times: Sequence[StepTimes]
    layers: Sequence[int]
    hosts: Sequence[int]
    link: Link

    def seconds(self, batch: DecodeBatch) -> list[float]:
        """The step's time on each stage. The last layer computes little more than the rows that
        sample (`workers/models/base.py`)."""
        work, each, last = batch.work, zip(self.times, self.layers, strict=True), self.times[-1]
        sampled, skewed = sum(batch.samples), _skewed_rows(batch)
        seconds = [times.layer(work, skewed) * layers for times, layers in each]
        spared = last.layer(StepWork(work.tokens)) - last.layer(StepWork(sampled))
        seconds[-1] += last.head(sampled) - _OF_LAST_TOKENS * spared
        return seconds

    def coefficients(self) -> Coefficients:
        """What a scheduler knows of the slowest stage once it has seen many steps."""
        each = zip(self.times, self.layers, strict=True)
        by_stage = [times.coefficients(layers) for times, layers in each]
        return Coefficients(*map(max, zip(*by_stage, strict=True)))

    def leaves_host(self, stage: int) -> bool:
        """Whether the next stage is on another host."""
        return self.hosts[stage] != self.hosts[stage + 1]

    def transfer(self, tokens: int) -> float:
        """Seconds that hidden states take between hosts."""
        return self.link.latency + self.link.token * tokens

    @property
    def way_back(self) -> float:
        """Seconds that a result of the last stage takes on the network to the first one's host."""
        return self.link.latency if self.hosts[0] != self.hosts[-1] else 0.0


def _skewed_rows(batch: DecodeBatch) -> int:
    """The decode rows whose contexts are split because of one that is far longer."""
    rows, longest = batch.num_decodes, max(batch.starts[: batch.num_decodes], default=0)
    fair = max(SKEWED_MIN_CONTEXT, batch.contexts // SKEWED_SHARE)
    return rows if rows > SKEWED_MIN_ROWS and longest > fair else 0


def divided(config: ExecutionConfig, times: Sequence[StepTimes]) -> ExecutionConfig:
    """With the layers of each stage as asked for, else as the daemon would choose them if its
    workers measured these times. Raises ModelConfigError."""
    if config.stage_layers:
        return config
    costs = [_costs(config, each) for each in times]
    return msgspec.structs.replace(config, stage_layers=choose_layers(config, costs))


def _costs(config: ExecutionConfig, times: StepTimes) -> StageCosts:
    parts = msgspec.structs.replace(config, devices=config.devices[:1] * 3, stage_layers=(0, 1, 0))
    embedding, layer, head = weight_bytes(parts, None)
    return StageCosts(
        layer=PartCosts(times.layer(_DECODES), times.layer(_PROMPTS), layer),
        embedding=PartCosts(0.0, 0.0, embedding),
        head=PartCosts(times.head(_DECODES.tokens), _head_of_prompts(times), head),
        kv_block_bytes=config.kv_plane_bytes,
    )


def _head_of_prompts(times: StepTimes) -> float:
    """Less what the last layer saves, as workers count it."""
    return times.head(_ENDS.tokens) + times.layer(_ENDS) - times.layer(_PROMPTS)


def kv_tokens(config: ExecutionConfig) -> int:
    """Tokens for which the tightest stage has room, below 0 if its weights alone are too large."""
    weights = weight_bytes(config, None)
    return min(
        (
            config.memory_shares[stage]
            - weights[stage]
            - config.activation_bytes(stage)
            - OTHER_BYTES
        )
        // config.kv_token_bytes(share.layers)
        for stage, share in enumerate(shares_of(config.stage_layers))
    )
