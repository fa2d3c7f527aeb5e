"""One stage's share of a step: from the message to hidden states, and to a report on the last."""

import torch

from workers.attention.base import AttentionBackend, AttentionNeeds
from workers.attention.kv_cache import KVCache
from workers.attention.stage_attention import StageAttention
from workers.contract.config import WorkerConfig
from workers.contract.messages import StepInput
from workers.graphs.full_graph import FullGraph
from workers.graphs.graph_capture import GraphCapture
from workers.graphs.graph_selection import StageGraphs
from workers.heads.base import ClassifyHead, EmbedHead, GenerateHead, Head, HeadResult, SparseHead
from workers.models.base import StageModel
from workers.models.layer_loop import forward
from workers.models.partition import stage_layers
from workers.sampling.adjustments import TokenMask
from workers.sampling.sampling_table import SamplingTable
from workers.stage.model_input import DecoderInputBuilder, EncoderInputBuilder, ModelInput
from workers.step.slot_table import SlotTable
from workers.weights.loader import TORCH_DTYPES


class ModelRunner:
    """Runs the steps of one stage, in the order in which they come.

    `kv_cache` is None for an encoder, which keeps nothing between steps.
    """

    slots: SlotTable
    kv_cache: KVCache | None

    def __init__(
        self,
        config: WorkerConfig,
        model: StageModel,
        backend: AttentionBackend,
        num_blocks: int,
    ) -> None:
        """Allocates `num_blocks` of KV cache for a decoder."""
        self._config = config
        self._device = device = torch.device(config.device)
        max_blocks = -(-config.max_model_len // config.block_size)
        self.slots = SlotTable(config.max_slots, max_blocks, num_blocks, device)
        self._model = model
        paged = config.task == "generate"
        self.kv_cache = _kv_cache(config, num_blocks, device) if paged else None
        first, last = config.stage == 0, config.stage == config.num_stages - 1
        samples = paged and last
        self._sampling = (
            SamplingTable(config.max_slots, config.model.vocab_size, device) if samples else None
        )
        self._builder = (
            DecoderInputBuilder(self.slots, self._sampling, config.block_size, device, first=first)
            if paged
            else EncoderInputBuilder(device)
        )
        self._attention = StageAttention(
            backend,
            (config.model.num_heads, config.model.num_kv_heads),
            self.kv_cache.layers if self.kv_cache else None,
            model.rotary,
        )
        self._head = _head(config, model, self.slots, self._sampling) if last else None

    def prepare(self, message: StepInput) -> ModelInput:
        """Apply the message's slot changes and put the step's tensors on the device."""
        return self._builder.build(message)

    def forward(self, batch: ModelInput, hidden: torch.Tensor | None) -> torch.Tensor:
        """This stage's layers over hidden states of the stage before."""
        step, graph = batch.tensors, batch.graph
        if isinstance(graph, FullGraph):
            return graph.run(hidden)
        if graph is not None:
            return graph.run(step, hidden, lambda: batch.wanted.ends)
        return forward(self._model, step, hidden, self._attention.of(step), batch.wanted.ends)

    def report(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        """Last stage: what `forward`'s states of this step come to. `mask` is what the grammars of
        its masked rows allow."""
        assert self._head is not None, "only the last stage reports"
        return self._head(batch, hidden, mask)

    def warm_up_sampling(self) -> None:
        """On CUDA: sample once in every way, so that its kernels are compiled."""
        if isinstance(self._head, GenerateHead) and self._device.type == "cuda":
            self._head.warm_up(self._hidden_like())

    def clear(self) -> None:
        """Forget every slot."""
        self.slots.clear()
        if self._sampling is not None:
            self._sampling.clear()

    def run_alone(self, message: StepInput) -> None:
        """Run a step without the other stages, as if they had sent zeros, and drop its result."""
        batch = self.prepare(message)
        hidden = None
        if self._config.stage:
            hidden = self._hidden_like().expand(len(batch.tensors.positions), -1).contiguous()
        hidden = self.forward(batch, hidden)
        if self._head is not None:
            self.report(batch, hidden)

    def can_capture(self) -> bool:
        """Whether steps of this stage can be captured in CUDA graphs."""
        capabilities = self._attention.backend.capabilities
        safe = self._device.type == "cuda" and capabilities.graph_safe
        return safe and self.kv_cache is not None

    def capture(self, rows: list[int], tokens: list[int]) -> StageGraphs:
        """Capture decode steps of so many rows and other steps of so many tokens, in place of any
        that were; from now on such steps are replayed. Returns those that were kept."""
        assert isinstance(self._builder, DecoderInputBuilder)
        assert self.kv_cache is not None
        scratch_kv_index = self.kv_cache.num_blocks * self._config.block_size
        capture = GraphCapture(self._model, self._attention, self.slots, scratch_kv_index)
        hidden_like = self._hidden_like() if self._config.stage else None
        self._builder.graphs = capture.capture(rows, tokens, hidden_like)
        return self._builder.graphs

    def _hidden_like(self) -> torch.Tensor:
        shape = (1, self._config.model.hidden_size)
        return torch.zeros(shape, dtype=TORCH_DTYPES[self._config.dtype], device=self._device)


def attention_needs(config: WorkerConfig) -> AttentionNeeds:
    """What the stage that `config` describes asks of its attention backend."""
    return AttentionNeeds(
        paged=config.task == "generate",
        device=config.device,
        dtype=TORCH_DTYPES[config.dtype],
        num_heads=config.model.num_heads,
        num_kv_heads=config.model.num_kv_heads,
        head_dim=config.model.head_dim,
        block_size=config.block_size,
    )


def _kv_cache(config: WorkerConfig, num_blocks: int, device: torch.device) -> KVCache:
    layers = stage_layers(config.model.num_layers, config.stage, config.num_stages)
    dtype = TORCH_DTYPES[config.dtype]
    return KVCache(config.model, len(layers), num_blocks, config.block_size, dtype, device)


def _head(
    config: WorkerConfig, model: StageModel, slots: SlotTable, sampling: SamplingTable | None
) -> Head:
    match config.task:
        case "generate":
            assert sampling is not None, "the last stage samples"
            return GenerateHead(model, slots, sampling)
        case "embed":
            return EmbedHead(config.model.pooling)
        case "embed_sparse":
            return SparseHead(model, config.model.splade)
        case "classify":
            return ClassifyHead(model)
