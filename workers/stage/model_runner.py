"""Runs a stage's share of each step, from the message to hidden states or results."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from msgspec.structs import replace

from workers.attention.base import AttentionBackend, AttentionNeeds, LayerCache
from workers.attention.stage_attention import LayerAttention, StageAttention
from workers.contract.cache_layout import CacheLayout
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep, EncodeStep, SlotInit, StepInput
from workers.contract.model_config import AttentionKind
from workers.contract.token_sampling import GREEDY, TokenSampling
from workers.heads.base import HeadResult
from workers.heads.encoder_head import encoder_head, pooling_modes
from workers.layers.layer import TORCH_DTYPES, Placement
from workers.layers.linear import pad_rows
from workers.layers.rotary import RotaryEmbedding
from workers.models.base import StageLayer, StageModel, forward
from workers.step.packed_step import PackedStep
from workers.step.rows import IntArray
from workers.weights.loader import LoadedModel

if TYPE_CHECKING:
    from workers.graphs.captured_step import GraphSizes
    from workers.graphs.text_graphs import TextGraph, TextGraphs

NOT_CAPTURED = "CUDA graphs: none, for the attention backend's steps cannot be captured"

_logger = logging.getLogger(__name__)

MAX_TOKENS = 64
"""Tokens of the longest step that warms up: enough to take every path."""

StepT = TypeVar("StepT", DecodeStep, EncodeStep)
InputT = TypeVar("InputT")

_TOKEN_BYTES = 4


class ModelRunner(ABC, Generic[StepT, InputT]):
    """Takes the steps of one stage in order. `InputT` is a step on the device."""

    attention: StageAttention

    def __init__(self, worker: WorkerConfig, loaded: LoadedModel) -> None:
        self.config = worker.execution
        self.stage = worker.stage
        self.placement = Placement.of(worker)
        self.device = self.placement.device
        self._model = loaded.model
        self.first, self.last = loaded.model.share.first, loaded.model.share.last

    @abstractmethod
    def prepare(self, message: StepT) -> InputT:
        """Put the step's tensors on the device."""

    @abstractmethod
    def forward(self, prepared: InputT, hidden: torch.Tensor | None) -> torch.Tensor:
        """Run the layers over hidden states [T', state_size] of the stage before, None on the
        first stage. The result may have more rows than the step has tokens."""

    def reuses_states(self, prepared: InputT) -> bool:
        """Whether a later step overwrites what `forward` returned for this one, in stream order."""
        return False

    @abstractmethod
    def run_head(
        self, prepared: InputT, hidden: torch.Tensor, mask_bits: Callable[[], bytes] = bytes
    ) -> HeadResult:
        """Last stage: the results of a step, from what `forward` returned for it. `mask_bits`
        waits for `StepMask.bits`, and is called for masked rows alone, as late as possible."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run each kind of step once through this stage alone, without a trace. The first of a kind
        pays for lazy initialisation."""

    def run_alone(self, message: StepT) -> None:
        """Run a step without the other stages, as if they had sent zeros, and drop its result."""
        prepared = self.prepare(message)
        hidden = None
        if not self.first:
            hidden = pad_rows(self.hidden_like().expand(num_tokens(message), -1).contiguous())
        hidden = self.forward(prepared, hidden)
        if self.last:
            self.run_head(prepared, hidden)

    def hidden_like(self) -> torch.Tensor:
        """Zeros [1, state_size], as between stages."""
        shape = (1, self.config.model.state_size)
        return torch.zeros(shape, dtype=self.placement.dtype, device=self.device)


def num_tokens(message: StepInput) -> int:
    """T, the rows that stages send each other, whatever they pad or capture."""
    return len(message.tokens) // _TOKEN_BYTES


def attention_needs(config: ExecutionConfig) -> list[AttentionNeeds]:
    """Needs of each stage of a model, by kind of layer, of an attention backend."""
    late = config.model.late_interaction
    unattended = late is not None and late.expands and not late.attends_expansion
    return [
        AttentionNeeds(
            kind=kind,
            device=config.device_type,
            dtype=TORCH_DTYPES[config.dtype],
            **config.model.heads(kind)._asdict(),
            block_size=config.block_size,
            fp8_cache=config.cache_dtype != config.dtype,
            unattended=unattended,
        )
        for kind in config.model.attention
    ]


def stage_attention(
    execution: ExecutionConfig,
    model: StageModel,
    backends: Sequence[AttentionBackend],
    cached: Mapping[int, tuple[LayerCache, int]],
    placement: Placement,
) -> StageAttention:
    """Attention of the layers of `model`, whose weights are packed. There is one backend a kind of
    layer. By its number each layer that caches has a cache, and the number of its block table."""
    config, length = execution.model, execution.max_model_len

    def rotary(kind: AttentionKind) -> RotaryEmbedding | None:
        head_dim = config.heads(kind).head_dim
        return kind.rope and RotaryEmbedding(kind.rope, head_dim, length, placement)

    rotaries = [rotary(kind) for kind in config.attention]

    def attention(index: int, layer: StageLayer) -> LayerAttention:
        kind, source = config.layer_kinds[index], config.kv_layer(index)
        heads, kv_heads, _ = config.heads_of(index)
        cache, table = cached.get(source, (None, 0))
        return LayerAttention(
            *(backends[kind], rotaries[kind], (heads, kv_heads if source == index else 0)),
            *(layer.qk_norm, layer.vectors, layer.sinks, cache, table),
        )

    layers = zip(model.share.layers, model.layers, strict=True)
    return StageAttention([attention(*own) for own in layers], model.position_bias)


class EncodeInput(NamedTuple):
    """One step as a stage runs it. Its tensors are those of the captured `graph`, if one fits."""

    tensors: PackedStep
    graph: "TextGraph | None" = None


class EncodeRunner(ModelRunner[EncodeStep, EncodeInput]):
    """See `ModelRunner`."""

    _graphs: "TextGraphs | None" = None

    def __init__(
        self, worker: WorkerConfig, loaded: LoadedModel, backends: Sequence[AttentionBackend]
    ) -> None:
        super().__init__(worker, loaded)
        config, model = worker.execution, loaded.model
        self.attention = stage_attention(config, model, backends, {}, self.placement)
        self._head = encoder_head(config, model)
        self._modes = pooling_modes(config) if self.last else ()

    def prepare(self, message: EncodeStep) -> EncodeInput:
        graph = self._graphs.select(message) if self._graphs else None
        place = None if graph is None else graph.inputs.place
        return EncodeInput(PackedStep.of(message, self.device, self._modes, place), graph)

    def forward(self, prepared: EncodeInput, hidden: torch.Tensor | None) -> torch.Tensor:
        step, graph = prepared
        if graph is not None:
            return graph.run(hidden)
        return forward(self._model, step, hidden, self.attention.over(step))

    def reuses_states(self, prepared: EncodeInput) -> bool:
        return prepared.graph is not None

    def run_head(
        self, prepared: EncodeInput, hidden: torch.Tensor, mask_bits: Callable[[], bytes] = bytes
    ) -> HeadResult:
        del mask_bits  # nothing is sampled
        return self._head(prepared.tensors, hidden)

    def warm_up(self) -> None:
        for message in encode_steps(self.config):
            self.run_alone(message)
        if self.device.type != "cuda":
            return
        if not self.attention.chunks_graph_safe:
            _logger.info(NOT_CAPTURED)
            return
        # Imported here: a CPU needs none of this.
        from workers.graphs.captured_step import captured  # noqa: PLC0415
        from workers.graphs.text_graphs import text_graph_sizes  # noqa: PLC0415

        config = self.config
        sizes = text_graph_sizes(config.largest_step_tokens, config.max_model_len)
        captured(self.capture, sizes, self.attention, self.placement, config.shape)

    def capture(self, sizes: "GraphSizes") -> "TextGraphs":
        """Capture steps of these sizes, in place of any before. Steps that have room in one are
        replayed from now on."""
        from workers.graphs.text_graphs import capture_texts  # noqa: PLC0415

        own = self.config, self._model, self.attention, self._modes, self.hidden_like()
        self._graphs = capture_texts(*own, sizes)
        return self._graphs


# Steps without a request: those that warm a stage up, and others by which it is measured.


def encode_steps(config: ExecutionConfig) -> list[EncodeStep]:
    """Two rows of unequal length, the same with prompts, then one short row."""
    length = max(1, min(MAX_TOKENS, config.max_model_len, config.max_step_tokens // 2))
    two = step_of_texts([length, max(1, length // 2)])
    return [two, replace(two, unpooled_lens=_zeros(2)), step_of_texts([1])]


def step_of_texts(lens: Sequence[int]) -> EncodeStep:
    query_lens = np.array(lens, np.int32)
    return EncodeStep(step=0, tokens=_zeros(sum(lens)), query_lens=query_lens.tobytes())


def decode_steps(config: ExecutionConfig, num_blocks: int) -> list[DecodeStep]:
    """A prompt that is scored and sampled with truncation, then its last token again, greedily, and
    a block copied."""
    layout, truncated = config.cache_layout, TokenSampling(top_p=0.9)
    most = num_blocks * config.block_size
    length = min(MAX_TOKENS, config.max_model_len, config.max_step_tokens, most)
    lens, one = np.array([length], np.int32), np.ones(1, np.int32)
    prompt = step_of_rows(lens, np.zeros_like(lens), layout, truncated)
    scored = [replace(init, logprobs=1) for init in prompt.inits]
    again = step_of_rows(one, lens - 1, layout, GREEDY)
    last_token = np.array([-1], np.int32).tobytes()
    return [
        replace(prompt, inits=scored, targets=_zeros(length)),
        replace(again, step=1, tokens=last_token, block_copies=_zeros(2)),
    ]


def step_of_first_tokens(rows: int, layout: CacheLayout) -> DecodeStep:
    """Rows of one token that begin, all in one block."""
    lens, zeros = np.ones(rows, np.int32), np.zeros(rows, np.int32)
    step = step_of_rows(lens, zeros, layout, GREEDY)
    updates = np.frombuffer(step.block_updates, np.int32).reshape(-1, 3) * (1, 1, 0)
    return replace(step, block_updates=updates.astype(np.int32).tobytes())


def step_of_rows(
    query_lens: IntArray, cached: IntArray, layout: CacheLayout, sampling: TokenSampling
) -> DecodeStep:
    """Rows of `query_lens` tokens behind `cached` ones, int32[R] each, all of which sample. Row r
    is in slot r, and its blocks follow those of row r - 1. They are in all tables: layers that
    would have others write over them one after another."""
    contexts = cached + query_lens
    blocks = -(-contexts // layout.block_size)
    slots = np.arange(len(query_lens), dtype=np.int32)
    firsts = np.cumsum(blocks) - blocks
    owner, block = np.repeat(slots, blocks), np.arange(blocks.sum(), dtype=np.int32)
    table = np.stack([owner, block - firsts[owner], block], axis=1, dtype=np.int32)
    further = np.array([0, layout.max_blocks, 0], np.int32)
    tables = np.concatenate([table + number * further for number in range(layout.num_tables)])
    return DecodeStep(
        step=0,
        tokens=_zeros(int(query_lens.sum())),
        query_lens=query_lens.tobytes(),
        slots=slots.tobytes(),
        starts=cached.tobytes(),
        sample=b"\1" * len(slots),
        block_updates=tables.tobytes(),
        inits=[
            SlotInit(
                slot=slot,
                prompt_len=context,
                seed=slot,
                sampling=sampling,
                known_tokens=_zeros(context) if sampling.penalised else b"",
            )
            for slot, context in enumerate(contexts.tolist())
        ],
    )


def blocks_of(message: DecodeStep) -> int:
    """How many blocks a step of `step_of_rows` needs."""
    return 1 + int(np.frombuffer(message.block_updates, np.int32)[2::3].max())


def _zeros(count: int) -> bytes:
    return bytes(4 * count)
