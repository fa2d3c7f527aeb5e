"""One stage's share of a step: from the message to hidden states, and to a report on the last."""

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, AttentionNeeds
from workers.config import WorkerConfig
from workers.heads import ClassifyHead, EmbedHead, GenerateHead, Head
from workers.kv_cache import KVCache
from workers.loader import TORCH_DTYPES
from workers.messages import StepInput, StepOutput
from workers.model_input import DecoderInputBuilder, EncoderInputBuilder, ModelInput
from workers.models.base import Attend, StageModel
from workers.models.partition import stage_layers
from workers.slots import SlotTable


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
        device = torch.device(config.device)
        max_blocks = -(-config.max_model_len // config.block_size)
        self.slots = SlotTable(config.max_slots, max_blocks, device)
        self._model = model
        self._backend = backend
        paged = config.head == "generate"
        self.kv_cache = _kv_cache(config, num_blocks, device) if paged else None
        first, last = config.stage == 0, config.stage == config.num_stages - 1
        self._builder = (
            DecoderInputBuilder(self.slots, config.block_size, device, first=first, last=last)
            if paged
            else EncoderInputBuilder(device)
        )
        self._head = _head(config, model, self.slots)

    def prepare(self, message: StepInput) -> ModelInput:
        """Apply the message's slot changes and put the step's tensors on the device."""
        return self._builder.build(message)

    def forward(self, batch: ModelInput, hidden: torch.Tensor | None) -> torch.Tensor:
        """This stage's layers. `hidden` [T', hidden_size] comes from the stage before, None on the
        first; returns the same shape."""
        return self._model.forward(batch.tensors, hidden, self._attend(batch))

    def report(self, batch: ModelInput, hidden: torch.Tensor) -> StepOutput:
        """Last stage: what `forward`'s states of this step come to, without `busy_us`."""
        return self._head(batch, hidden)

    def _attend(self, batch: ModelInput) -> Attend:
        """Attention by this step's plan; the backend never sees padding."""
        backend = self._backend
        caches = self.kv_cache.layers if self.kv_cache else None
        plan = backend.plan(batch.tensors)
        total = batch.tensors.num_tokens
        padding = len(batch.tensors.positions) - total

        def attend(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor:
            if padding:
                queries, keys, values = queries[:total], keys[:total], values[:total]
            cache = caches[layer] if caches else None
            if cache:
                backend.write_kv(keys, values, cache, plan)
            attended = backend.forward(queries, keys, values, cache, plan)
            return F.pad(attended, (0, 0, 0, 0, 0, padding)) if padding else attended

        return attend


def attention_needs(config: WorkerConfig) -> AttentionNeeds:
    """What the stage that `config` describes asks of its attention backend."""
    return AttentionNeeds(
        paged=config.head == "generate",
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


def _head(config: WorkerConfig, model: StageModel, slots: SlotTable) -> Head:
    match config.head:
        case "generate":
            return GenerateHead(model, slots)
        case "embed":
            return EmbedHead(config.model.pooling)
        case "classify":
            return ClassifyHead(model, sigmoid=config.model.sigmoid_scores)
