"""Runs one stage's share of each step, from its message to hidden states, and on the last stage to
results."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from workers.attention.base import AttentionBackend, AttentionNeeds, LayerCache
from workers.attention.stage_attention import KindAttention, LayerAttention, StageAttention
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep, EncodeStep, StepInput, StepMask
from workers.heads.base import HeadResult
from workers.layers.layer import Placement
from workers.layers.linear import pad_rows
from workers.layers.rotary import RotaryEmbedding
from workers.models.base import StageModel
from workers.weights.loader import TORCH_DTYPES

StepT = TypeVar("StepT", DecodeStep, EncodeStep)
InputT = TypeVar("InputT")

_TOKEN_BYTES = 4


class ModelRunner(ABC, Generic[StepT, InputT]):
    """Takes the steps of one stage in the order in which they come. `InputT` is a step on the
    device."""

    def __init__(self, worker: WorkerConfig) -> None:
        config = self.config = worker.execution
        self.stage = worker.stage
        self.device = torch.device(worker.local_device)
        self.first = worker.stage == 0
        self.last = worker.stage == config.num_stages - 1

    @abstractmethod
    def prepare(self, message: StepT) -> InputT:
        """Put the step's tensors on the device."""

    @abstractmethod
    def forward(self, batch: InputT, hidden: torch.Tensor | None) -> torch.Tensor:
        """This stage's layers over hidden states [T', hidden_size] of the stage before, None on the
        first stage. The result may have more rows than the step has tokens."""

    @abstractmethod
    def reuses_states(self, batch: InputT) -> bool:
        """Whether a later step overwrites what `forward` returned for this one, in stream order."""

    @abstractmethod
    def run_head(
        self, batch: InputT, hidden: torch.Tensor, mask: StepMask | None = None
    ) -> HeadResult:
        """Last stage: the results of a step, from what `forward` returned for it; `mask` is given
        for a step with masked rows."""

    @abstractmethod
    def warm_up(self) -> None:
        """The first step of a kind pays for lazy initialisation: run each kind once through this
        stage alone, before any request, and leave no trace of it."""

    def run_alone(self, message: StepT) -> None:
        """Run a step without the other stages, as if they had sent zeros, and drop its result."""
        batch = self.prepare(message)
        hidden = None
        if not self.first:
            hidden = pad_rows(self.hidden_like().expand(num_tokens(message), -1).contiguous())
        hidden = self.forward(batch, hidden)
        if self.last:
            self.run_head(batch, hidden)

    def hidden_like(self) -> torch.Tensor:
        """Zeros [1, hidden_size], as between stages."""
        shape = (1, self.config.model.hidden_size)
        return torch.zeros(shape, dtype=TORCH_DTYPES[self.config.dtype], device=self.device)


def num_tokens(message: StepInput) -> int:
    """T: what is sent between stages has the step's own rows, whatever a stage pads or captures."""
    return len(message.tokens) // _TOKEN_BYTES


def attention_needs(config: ExecutionConfig) -> list[AttentionNeeds]:
    """What each stage of a model needs of its attention backends, by kind of layer."""
    return [
        AttentionNeeds(
            kind=kind,
            device=config.device_type,
            dtype=TORCH_DTYPES[config.dtype],
            num_heads=config.model.num_heads,
            num_kv_heads=config.model.num_kv_heads,
            head_dim=config.model.head_dim,
            block_size=config.block_size,
        )
        for kind in config.model.attention
    ]


def stage_attention(
    execution: ExecutionConfig,
    model: StageModel,
    backends: Sequence[AttentionBackend],
    caches: Sequence[LayerCache],
    placement: Placement,
) -> StageAttention:
    """Attention of the layers of `model`, whose weights are packed: one backend a kind of layer,
    one cache a layer."""
    config, length = execution.model, execution.max_model_len
    kinds = [
        KindAttention(
            backend,
            kind.rope and RotaryEmbedding(kind.rope, config.head_dim, length, placement),
        )
        for kind, backend in zip(config.attention, backends, strict=True)
    ]
    layers = [
        LayerAttention(config.layer_kinds[index], layer.qk_norm)
        for index, layer in zip(model.share.layers, model.layers, strict=True)
    ]
    head_counts = config.num_heads, config.num_kv_heads
    return StageAttention(head_counts, kinds, layers, caches, model.position_bias)
