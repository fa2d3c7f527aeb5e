"""Decoders whose blocks normalise their input, with a gated feed-forward network and rotary
positions, such as Llama. `DecoderConfig` says what differs between them."""

import re
from collections.abc import Callable

import torch

from workers.contract.model_config import DecoderConfig, ModelConfig
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.linear import Linear
from workers.layers.norm import QKNorm, RMSNorm
from workers.layers.placement import Placement
from workers.layers.token_scores import TokenScores
from workers.models.base import StageLayer, StageModel, family_config, on_this_stage
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_ROTARY_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"


class DecoderLayer(StageLayer):
    """Attention and a gated feed-forward network. Each normalises its input and adds its output,
    which may be normalised too, to it (see `StageLayer`)."""

    def __init__(self, config: ModelConfig, name: str, placement: Placement) -> None:
        family = family_config(config, DecoderConfig)
        size, inner, sandwich = config.hidden_size, config.intermediate_size, family.sandwich_norms
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = f"{name}.self_attn"
        qkv = {f"{attention}.q_proj": queries} | {f"{attention}.{part}_proj": keys for part in "kv"}
        gate_up = {f"{name}.mlp.{part}_proj": inner for part in ("gate", "up")}
        if family.fused_projections:
            qkv = {f"{attention}.qkv_proj": queries + 2 * keys}
            gate_up = {f"{name}.mlp.gate_up_proj": 2 * inner}
        output = {f"{attention}.o_proj": size}
        norm = _norms(family, placement)
        self._head_dim = config.head_dim
        self._input_norm = norm(f"{name}.input_layernorm", size)
        self._head_norms = [
            norm(f"{attention}.{part}_norm", config.head_dim)
            for part in ("qk" if family.qk_norm else "")
        ]
        self._qkv = Linear(size, qkv, placement, bias=family.qkv_bias)
        self._output = Linear(queries, output, placement, bias=family.output_bias)
        after_attention = norm(f"{name}.post_attention_layernorm", size)
        self._output_norm = after_attention if sandwich else None
        self._mlp_norm = (
            norm(f"{name}.pre_feedforward_layernorm", size) if sandwich else after_attention
        )
        down = f"{name}.mlp.down_proj"
        function, bias = activation(family.hidden_act), family.mlp_bias
        self._gate_up = GatedLinear(size, gate_up, function, placement, bias=bias)
        self._down = Linear(inner, {down: size}, placement, bias=bias)
        self._down_norm = norm(f"{name}.post_feedforward_layernorm", size) if sandwich else None

    @property
    def qk_norm(self) -> QKNorm | None:
        if not self._head_norms:
            return None
        query, key = (norm.parameters for norm in self._head_norms)
        return QKNorm(query.weight, key.weight, query.eps)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(hidden, self._input_norm).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = _add(hidden, attended.flatten(1), self._output, self._output_norm)
        inner = self._gate_up.activated(hidden, self._mlp_norm)
        return _add(hidden, inner, self._down, self._down_norm)


def _add(
    hidden: torch.Tensor, rows: torch.Tensor, linear: Linear, norm: RMSNorm | None
) -> torch.Tensor:
    """`hidden`, which may be overwritten, plus the product, normalised if there is a norm."""
    return linear.add_to(hidden, rows) if norm is None else norm.add_to(hidden, linear(rows))


def _norms(family: DecoderConfig, placement: Placement) -> Callable[[str, int], RMSNorm]:
    """(name, size) -> a norm of the family's kind."""
    eps, unit_offset = family.norm_eps, family.unit_offset_norms
    return lambda name, size: RMSNorm(name, size, eps, placement, unit_offset=unit_offset)


class DecoderModel(StageModel):
    """One stage of a decoder without an LM head (see `StageModel`): its token states are pooled."""

    unused = re.compile(rf"lm_head\.weight|{_ROTARY_BUFFERS}")
    embedding_name = "model.embed_tokens"

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        family, size = family_config(config, DecoderConfig), config.hidden_size
        name, words, scale = self.embedding_name, config.vocab_size, family.embedding_scale
        first, last = self.share.first, self.share.last
        self._embedding = Embedding(name, words, size, placement, scale=scale) if first else None
        self.layers = [
            DecoderLayer(config, f"model.layers.{i}", placement) for i in self.share.layers
        ]
        self._norm = _norms(family, placement)("model.norm", size) if last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embedding)(step.tokens)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._norm is None else self._norm(hidden)


class DecoderForCausalLM(DecoderModel):
    """One stage of a decoder with its LM head."""

    unused = re.compile(_ROTARY_BUFFERS)
    lm_head_name = "lm_head"

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, cap = super().compute_logits(hidden), self._softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _make_head(self, config: ModelConfig, placement: Placement) -> Linear | TokenScores:
        self._softcap = family_config(config, DecoderConfig).logit_softcap
        words, tied = self._embedding, config.tie_word_embeddings
        if config.reranking is None:
            return self._make_lm_head(config, placement, words, bias=False)
        return TokenScores(
            self.embedding_name if tied else self.lm_head_name,
            config.vocab_size,
            config.hidden_size,
            placement,
            token_ids=config.reranking.token_ids,
            embedding=words.weight if tied and words is not None else None,
        )


class DecoderForSequenceClassification(DecoderModel):
    """One stage of a decoder with a classifier."""

    def _make_head(self, config: ModelConfig, placement: Placement) -> Linear:
        return Linear(config.hidden_size, {"score": config.num_labels}, placement, bias=False)
