"""Llama (Touvron et al. 2023, arXiv:2302.13971), with grouped queries and scaled positions."""

from collections.abc import Sequence

import torch

from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.layer import Layer
from workers.layers.linear import Linear, pad_rows
from workers.layers.norm import RMSNorm
from workers.layers.placement import Placement
from workers.layers.rotary import RotaryEmbedding
from workers.model_config import ModelConfig
from workers.models.base import Attend
from workers.models.partition import stage_layers
from workers.step_tensors import StepTensors

_EMBEDDING = "model.embed_tokens"


class LlamaAttention(Layer):
    """Self-attention with rotary positions; queries, keys and values in one product."""

    def __init__(
        self, config: ModelConfig, name: str, rotary: RotaryEmbedding, placement: Placement
    ) -> None:
        self._rotary, self._head_dim = rotary, config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        qkv = {f"{name}.q_proj": queries, f"{name}.k_proj": keys, f"{name}.v_proj": keys}
        output = {f"{name}.o_proj": config.hidden_size}
        bias = config.attention_bias
        self._qkv = Linear(config.hidden_size, qkv, placement, bias=bias)
        self._output = Linear(queries, output, placement, bias=bias)

    def __call__(
        self, layer: int, hidden: torch.Tensor, norm: RMSNorm, attend: Attend
    ) -> torch.Tensor:
        """`hidden` [T', hidden_size] plus attention over its normalised states."""
        heads = self._qkv(hidden, norm).view(hidden.shape[0], -1, self._head_dim)
        attended = attend(layer, heads, self._rotary)
        return self._output.add_to(hidden, attended.flatten(1))

    def parts(self) -> Sequence[Layer]:
        return self._qkv, self._output


class LlamaLayer(Layer):
    """Attention and a gated feed-forward network, each normalised before and added to its input."""

    def __init__(
        self, config: ModelConfig, name: str, rotary: RotaryEmbedding, placement: Placement
    ) -> None:
        size, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        self._input_norm = RMSNorm(f"{name}.input_layernorm", size, eps, placement)
        self._attention = LlamaAttention(config, f"{name}.self_attn", rotary, placement)
        self._mlp_norm = RMSNorm(f"{name}.post_attention_layernorm", size, eps, placement)
        gate_up = {f"{name}.mlp.gate_proj": inner, f"{name}.mlp.up_proj": inner}
        down = {f"{name}.mlp.down_proj": size}
        self._gate_up = Linear(size, gate_up, placement, bias=config.mlp_bias)
        self._down = Linear(inner, down, placement, bias=config.mlp_bias)
        self._activation = activation(config.hidden_act)

    def __call__(self, layer: int, hidden: torch.Tensor, attend: Attend) -> torch.Tensor:
        """[T', hidden_size] -> the same; `hidden` may be overwritten."""
        hidden = self._attention(layer, hidden, self._input_norm, attend)
        inner = self._gate_up.gated(hidden, self._mlp_norm, self._activation)
        return self._down.add_to(hidden, inner)

    def parts(self) -> Sequence[Layer]:
        return self._input_norm, self._attention, self._mlp_norm, self._gate_up, self._down


class LlamaForCausalLM(Layer):
    """One stage of a Llama with its language-model head (see `StageModel`).

    With tied embeddings the head's weight is the embedding's; where the two are on different
    stages, each loads it.
    """

    def __init__(
        self, config: ModelConfig, stage: int, num_stages: int, placement: Placement
    ) -> None:
        first, last = stage == 0, stage == num_stages - 1
        layers = stage_layers(config.num_layers, stage, num_stages)
        rotary = RotaryEmbedding(config.rope, config.head_dim, config.max_position, placement)
        self._layers = [LlamaLayer(config, f"model.layers.{i}", rotary, placement) for i in layers]
        size, vocabulary = config.hidden_size, config.vocab_size
        self._embedding = Embedding(_EMBEDDING, vocabulary, size, placement) if first else None
        self._norm = RMSNorm("model.norm", size, config.norm_eps, placement) if last else None
        self._head = self._make_head(config, placement) if last else None

    def forward(
        self, step: StepTensors, hidden: torch.Tensor | None, attend: Attend
    ) -> torch.Tensor:
        if self._embedding is not None:
            hidden = self._embedding(step.tokens)
        assert hidden is not None, "a later stage gets the hidden states of the one before"
        for index, layer in enumerate(self._layers):
            hidden = layer(index, hidden, attend)
        return hidden if self._norm is None else self._norm(hidden)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self._head is not None, "only the last stage has the head"
        return self._head(pad_rows(hidden))[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        parts = (self._embedding, *self._layers, self._norm, self._head)
        return [part for part in parts if part is not None]

    @staticmethod
    def canonical_name(name: str) -> str:
        return name

    def _make_head(self, config: ModelConfig, placement: Placement) -> Linear:
        tied = config.tie_word_embeddings
        shared = self._embedding.weight if tied and self._embedding is not None else None
        head = {_EMBEDDING if tied else "lm_head": config.vocab_size}
        return Linear(config.hidden_size, head, placement, bias=False, tied=shared)
