"""A stage of a decoder: rows in slots, a KV cache, CUDA graphs."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from workers.attention.base import AttentionBackend
from workers.attention.kv_cache import KVCache
from workers.attention.prefix_tiles import PrefixTiler
from workers.contract.config import WorkerConfig
from workers.contract.messages import DecodeStep
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.graphs.captured_step import FullGraph, GraphSizes, captured
from workers.graphs.stage_graphs import (
    DecodeGraph,
    GraphCapture,
    PartialGraph,
    StageGraphs,
    decode_graph_sizes,
    grouped_graph_sizes,
    prompt_graph_sizes,
)
from workers.heads.base import HeadResult
from workers.heads.decoder_head import (
    GenerateHead,
    LastTokenHead,
    RequestedOutputs,
    requested_outputs,
)
from workers.layers.layer import TORCH_DTYPES
from workers.models.base import forward, on_this_stage
from workers.sampling.sampling_table import SamplingTable, TokenMask
from workers.stage.model_runner import (
    MAX_TOKENS,
    NOT_CAPTURED,
    ModelRunner,
    decode_steps,
    stage_attention,
    step_of_first_tokens,
)
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable
from workers.weights.loader import LoadedModel

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecodeInput:
    """One step as a stage runs it. A captured `graph` that fits is loaded with the step's inputs,
    and T' is its size. `masked` is the message's."""

    tensors: PagedStep
    masked: bytes
    graph: DecodeGraph | PartialGraph | None = None
    build_requested: Callable[[], RequestedOutputs] = RequestedOutputs

    @cached_property
    def requested(self) -> RequestedOutputs:
        """Outputs for the last stage's head. Built once the layers are under way, and before the
        next step is."""
        return self.build_requested()

    def last_tokens(self) -> LastTokens | None:
        """Tokens whose final states the head reads, if fewer than the step's."""
        return self.requested.last_tokens


class DecodeRunner(ModelRunner[DecodeStep, DecodeInput]):
    """See `ModelRunner`. Keeps each slot's state and the KV cache between steps.

    Only the first stage resolves tokens of -1; only the last has a head, which samples if the model
    generates. A step that fits one of the captured graphs is loaded into it.
    """

    _graphs: StageGraphs | None = None

    def __init__(
        self,
        worker: WorkerConfig,
        loaded: LoadedModel,
        backends: Sequence[AttentionBackend],
        num_blocks: int,
        last_tokens: torch.Tensor | None = None,
    ) -> None:
        """Allocates `num_blocks` of KV cache. `last_tokens` holds the slots' newest tokens where
        stages share that memory."""
        super().__init__(worker, loaded)
        config, model = worker.execution, loaded.model
        slots, block_size, layout = config.max_running, config.block_size, config.cache_layout
        self.slots = SlotTable(
            *(slots, layout.max_blocks, block_size, num_blocks, self.device, last_tokens),
            table_parts=layout.table_parts,
        )
        layers, dtype = model.share.layers, TORCH_DTYPES[config.cache_dtype]
        self.kv_cache = KVCache(layout, layers, num_blocks, dtype, self.device)
        places = layout.places(layers).items()
        cached = {layer: (self.kv_cache.layers[layer], place.table) for layer, place in places}
        self.attention = stage_attention(config, model, backends, cached, self.placement)
        samples, vocab_size = self.last and config.task == "generate", config.model.vocab_size
        self._sampling = SamplingTable(slots, vocab_size, self.device) if samples else None
        self._head = None
        if self._sampling is not None:
            self._head = GenerateHead(model, self.slots, self._sampling)
        elif self.last:
            self._head = LastTokenHead(model, config.task)

    def prepare(self, message: DecodeStep) -> DecodeInput:
        """Apply the message's slot changes and block copies, and put the step's tensors on the
        device. Tokens of -1 are not looked up yet: they may still be on their way."""
        if message.block_copies:
            self.kv_cache.copy_blocks(message.block_copies)
        self.slots.update(message.block_updates)
        rows = StepRows.of(message)
        tokens = np.frombuffer(message.tokens, np.int32)
        graph = self._graphs.select(rows) if self._graphs else None
        if graph is None:
            step = PagedStep.of(rows, tokens, self.slots, look_up=self.first)
        else:
            inputs = graph.inputs
            inputs.load(tokens, self.slots.kv_indices(rows), rows)
            step = inputs.as_step(rows) if isinstance(graph, PartialGraph) else inputs.step
        if not self.last:
            return DecodeInput(step, message.masked, graph)
        if self._sampling is not None:
            self._sampling.update(message.inits)
        all_states, table = isinstance(graph, FullGraph), self._sampling
        build = partial(requested_outputs, message, rows, step, table, all_states=all_states)
        return DecodeInput(step, message.masked, graph, build)

    def forward(self, prepared: DecodeInput, hidden: torch.Tensor | None) -> torch.Tensor:
        step, graph = prepared.tensors, prepared.graph
        if isinstance(graph, FullGraph):
            return graph.run(hidden)
        if graph is not None:
            return graph.run(step, hidden, prepared.last_tokens)
        step.resolve(self.slots)
        attention = self.attention.over(step, prepared.last_tokens)
        return forward(self._model, step, hidden, attention)

    def reuses_states(self, prepared: DecodeInput) -> bool:
        return prepared.graph is not None

    def run_head(
        self, prepared: DecodeInput, hidden: torch.Tensor, mask_bits: Callable[[], bytes] = bytes
    ) -> HeadResult:
        mask = TokenMask.to_come(prepared.masked, mask_bits, self.device)
        return on_this_stage(self._head)(prepared.requested, hidden, mask)

    def warm_up(self) -> None:
        for message in decode_steps(self.config, self.kv_cache.num_blocks):
            self.run_alone(message)
        if isinstance(self._head, GenerateHead) and self.device.type == "cuda":
            self._head.warm_up(self.hidden_like()[:, : self.config.model.hidden_size])
        if self.can_capture():
            sizes, shape = self.graph_sizes(), self.config.shape
            captured(self.capture, sizes, self.attention, self.placement, shape)
        elif self.device.type == "cuda":
            _logger.info(NOT_CAPTURED)
            # What capturing would have compiled: there are kernels for some numbers of rows.
            for rows in decode_graph_sizes(min(WARM_LM_HEAD_ROWS, self.config.max_running)):
                self.run_alone(step_of_first_tokens(rows, self.config.cache_layout))
        self._clear()

    def graph_sizes(self, most: int | None = None) -> GraphSizes:
        """Sizes of the steps to capture, or the `most` largest of each kind.

        Decode steps, which only a generator has, go by rows, and steps with prompts by tokens."""
        config, largest = self.config, slice(most and -most, None)
        rows = decode_graph_sizes(config.max_running)[largest]
        tokens = prompt_graph_sizes(config.max_step_tokens)[largest]
        generates = config.task == "generate"
        return {
            "decode": rows if generates else [],
            "grouped": grouped_graph_sizes(rows) if generates and self._prefix_tiler else [],
            "mixed": tokens if self.attention.chunks_graph_safe else [],
            "piecewise": tokens,
        }

    def can_capture(self) -> bool:
        return self.device.type == "cuda" and self.attention.graph_safe

    def capture(self, sizes: GraphSizes) -> StageGraphs:
        """Capture steps of these sizes, in place of any before. Such steps are replayed from now
        on."""
        hidden_like = None if self.first else self.hidden_like()
        parts = self._model, self.attention, self.slots, self._prefix_tiler
        capture = GraphCapture(*parts, self.placement.dtype)
        self._graphs = capture.capture(sizes, hidden_like)
        return self._graphs

    @property
    def _prefix_tiler(self) -> PrefixTiler | None:
        return None if self.config.disable_cascade_attn else self.attention.prefix_tiler

    def _clear(self) -> None:
        """Forget every slot, and what the warm-up wrote to the cache."""
        self.slots.clear()
        if self._sampling is not None:
            self._sampling.clear()
        self.kv_cache.clear(-(-MAX_TOKENS // self.config.block_size))
