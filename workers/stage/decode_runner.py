"""A stage of a decoder: rows in slots, a KV cache, CUDA graphs."""

import logging
import time
from collections.abc import Sequence

import torch

from workers.attention.base import AttentionBackend
from workers.attention.kv_cache import KVCache
from workers.contract.config import WorkerConfig
from workers.contract.messages import DecodeStep, StepMask
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.graphs.captured_steps import FullGraph
from workers.graphs.stage_graphs import (
    GraphCapture,
    StageGraphs,
    decode_graph_sizes,
    prompt_graph_sizes,
    summary,
)
from workers.heads.base import HeadResult
from workers.heads.decoder_head import decoder_head
from workers.layers.placement import Placement
from workers.models.base import on_this_stage
from workers.models.layer_loop import forward
from workers.sampling.adjustments import TokenMask
from workers.sampling.sampling_table import SamplingTable
from workers.stage.decode_input import DecodeInput, DecodeInputBuilder
from workers.stage.model_runner import ModelRunner, stage_attention
from workers.stage.warm_up_steps import MAX_TOKENS, decode_steps, step_of_first_tokens
from workers.step.slot_table import SlotTable
from workers.weights.loader import TORCH_DTYPES, LoadedModel

_logger = logging.getLogger(__name__)


class DecodeRunner(ModelRunner[DecodeStep, DecodeInput]):
    """See `ModelRunner`. Keeps each slot's state and the KV cache between steps."""

    slots: SlotTable
    kv_cache: KVCache

    def __init__(
        self,
        worker: WorkerConfig,
        loaded: LoadedModel,
        backends: Sequence[AttentionBackend],
        num_blocks: int,
        last_tokens: torch.Tensor | None = None,
    ) -> None:
        """Allocates `num_blocks` of KV cache. `last_tokens` is for the slots' newest tokens where
        the stages share that memory."""
        super().__init__(worker)
        config, model = worker.execution, loaded.model
        self._model = model
        slots, block_size = config.max_running, config.block_size
        max_blocks = -(-config.max_model_len // block_size)
        self.slots = SlotTable(slots, max_blocks, block_size, num_blocks, self.device, last_tokens)
        placement = Placement(self.device, TORCH_DTYPES[config.dtype])
        layers, dtype = len(model.layers), placement.dtype
        self.kv_cache = KVCache(config.model, layers, num_blocks, block_size, dtype, self.device)
        self._attention = stage_attention(config, model, backends, self.kv_cache.layers, placement)
        samples, vocab_size = self.last and config.task == "generate", config.model.vocab_size
        self._sampling = SamplingTable(slots, vocab_size, self.device) if samples else None
        self._head = (
            decoder_head(config.task, model, self.slots, self._sampling) if self.last else None
        )
        self._builder = DecodeInputBuilder(
            self.slots, self._sampling, first=self.first, last=self.last
        )

    def prepare(self, message: DecodeStep) -> DecodeInput:
        """Apply the message's slot changes and block copies, and put the step's tensors on the
        device."""
        if message.block_copies:
            self.kv_cache.copy_blocks(message.block_copies)
        return self._builder.build(message)

    def forward(self, batch: DecodeInput, hidden: torch.Tensor | None) -> torch.Tensor:
        step, graph = batch.tensors, batch.graph
        if isinstance(graph, FullGraph):
            return graph.run(hidden)
        if graph is not None:
            return graph.run(step, hidden, batch.last_tokens)
        step.resolve(self.slots)
        attention = self._attention.over(step, batch.last_tokens)
        return forward(self._model, step, hidden, attention)

    def reuses_states(self, batch: DecodeInput) -> bool:
        return batch.graph is not None

    def run_head(
        self, batch: DecodeInput, hidden: torch.Tensor, mask: StepMask | None = None
    ) -> HeadResult:
        words = mask and TokenMask.from_bytes(batch.masked, mask.bits, self.device)
        return on_this_stage(self._head)(batch.requested, hidden, words)

    def warm_up(self) -> None:
        for message in decode_steps(self.config, self.kv_cache.num_blocks):
            self.run_alone(message)
        if self._head is not None and self.device.type == "cuda":
            self._head.warm_up(self.hidden_like())
        if self.can_capture():
            self._capture_all()
        elif self.device.type == "cuda":
            _logger.info("CUDA graphs: none, for the attention backend's steps cannot be captured")
            # What capturing would have compiled: there are kernels for some numbers of rows.
            for rows in decode_graph_sizes(min(WARM_LM_HEAD_ROWS, self.config.max_running)):
                self.run_alone(step_of_first_tokens(rows))
        self._clear()

    def graph_sizes(self) -> tuple[list[int], list[int]]:
        """Rows of the decode steps that are captured, and tokens of the steps with prompts. Only a
        generator has decode steps."""
        config = self.config
        rows = decode_graph_sizes(config.max_running) if config.task == "generate" else []
        return rows, prompt_graph_sizes(config.max_step_tokens)

    def can_capture(self) -> bool:
        """Whether steps of this stage can be captured in CUDA graphs."""
        return self.device.type == "cuda" and self._attention.graph_safe

    def capture(self, rows: list[int], tokens: list[int]) -> StageGraphs:
        """Capture decode steps of so many rows and other steps of so many tokens, in place of any
        that were; from now on such steps are replayed. Returns those that were kept."""
        scratch_kv_index = self.kv_cache.num_blocks * self.config.block_size
        tiler = None if self.config.disable_cascade_attn else self._attention.prefix_tiler
        capture = GraphCapture(self._model, self._attention, self.slots, scratch_kv_index, tiler)
        hidden_like = None if self.first else self.hidden_like()
        self._builder.graphs = capture.capture(rows, tokens, hidden_like)
        return self._builder.graphs

    def _capture_all(self) -> None:
        rows, tokens = self.graph_sizes()
        started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
        graphs = self.capture(rows, tokens)
        taken, seconds = free - torch.cuda.mem_get_info()[0], time.monotonic() - started
        kept = summary(graphs, rows, tokens)
        _logger.info("CUDA graphs: %s; %.1f s, %d MiB", kept, seconds, taken >> 20)

    def _clear(self) -> None:
        """Forget every slot, and what the warm-up wrote to the cache."""
        self.slots.clear()
        if self._sampling is not None:
            self._sampling.clear()
        blocks = -(-MAX_TOKENS // self.config.block_size)
        for layer in self.kv_cache.layers:
            layer.keys[:blocks].zero_()
            layer.values[:blocks].zero_()
