"""Decoders whose blocks normalise their input, with a gated feed-forward network and rotary
positions, such as Llama. `DecoderConfig` says what differs between them."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch

from workers.contract.families.table import family_of
from workers.contract.model_config import ModelConfig
from workers.contract.model_shape import DecoderConfig
from workers.contract.share import Share
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.layer import Layer
from workers.layers.linear import Linear, pad_rows
from workers.layers.norm import QKNorm, RMSNorm
from workers.layers.placement import Placement
from workers.layers.token_scores import TokenScores
from workers.models.base import family_config, on_this_stage
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_EMBEDDING = "model.embed_tokens"
_LM_HEAD = "lm_head"
_ROTARY_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"


class DecoderLayer(Layer):
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

    def parts(self) -> Sequence[Layer]:
        attention = (self._input_norm, *self._head_norms, self._qkv, self._output)
        outputs = [norm for norm in (self._output_norm, self._down_norm) if norm is not None]
        return *attention, self._mlp_norm, self._gate_up, self._down, *outputs


def _add(
    hidden: torch.Tensor, rows: torch.Tensor, linear: Linear, norm: RMSNorm | None
) -> torch.Tensor:
    """`hidden`, which may be overwritten, plus the product, normalised if there is a norm."""
    return linear.add_to(hidden, rows) if norm is None else norm.add_to(hidden, linear(rows))


def _norms(family: DecoderConfig, placement: Placement) -> Callable[[str, int], RMSNorm]:
    """(name, size) -> a norm of the family's kind."""
    eps, unit_offset = family.norm_eps, family.unit_offset_norms
    return lambda name, size: RMSNorm(name, size, eps, placement, unit_offset=unit_offset)


class DecoderModel(Layer):
    """One stage of a decoder without an LM head (see `StageModel`): its token states are pooled."""

    unused = re.compile(rf"lm_head\.weight|{_ROTARY_BUFFERS}")
    position_bias: torch.Tensor | None = None

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        self.canonical_name = family_of(config.architecture).canonical_name
        family = family_config(config, DecoderConfig)
        self.share = share
        self.layers = [DecoderLayer(config, f"model.layers.{i}", placement) for i in share.layers]
        size, words, scale = config.hidden_size, config.vocab_size, family.embedding_scale
        self._embedding = (
            Embedding(_EMBEDDING, words, size, placement, scale=scale) if share.first else None
        )
        self._norm = _norms(family, placement)("model.norm", size) if share.last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embedding)(step.tokens)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._norm is None else self._norm(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def parts(self) -> Sequence[Layer]:
        parts = (self._embedding, *self.layers, self._norm)
        return [part for part in parts if part is not None]

    def copies(self) -> Mapping[str, str]:
        return {}


class DecoderForCausalLM(DecoderModel):
    """One stage of a decoder with its LM head.

    With tied embeddings the LM head shares the embedding's weight; if the two are on different
    stages, each loads it.
    """

    unused = re.compile(_ROTARY_BUFFERS)

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        self._lm_head = self._make_lm_head(config, placement) if share.last else None
        self._tied = config.tie_word_embeddings
        self._softcap = family_config(config, DecoderConfig).logit_softcap

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = on_this_stage(self._lm_head)(pad_rows(hidden))[: hidden.shape[0]]
        cap = self._softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def parts(self) -> Sequence[Layer]:
        return super().parts() if self._lm_head is None else (*super().parts(), self._lm_head)

    def copies(self) -> Mapping[str, str]:
        has_copy = self._tied and self._lm_head is not None
        return {f"{_LM_HEAD}.weight": f"{_EMBEDDING}.weight"} if has_copy else {}

    def _make_lm_head(self, config: ModelConfig, placement: Placement) -> Linear | TokenScores:
        tied, size, words = config.tie_word_embeddings, config.hidden_size, config.vocab_size
        shared = self._embedding.weight if tied and self._embedding is not None else None
        name = _EMBEDDING if tied else _LM_HEAD
        if config.reranking is not None:
            tokens = config.reranking.token_ids
            return TokenScores(name, words, size, placement, token_ids=tokens, embedding=shared)
        return Linear(size, {name: words}, placement, bias=False, tied=shared)


class DecoderForSequenceClassification(DecoderModel):
    """One stage of a decoder with a classifier."""

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        labels = {"score": config.num_labels}
        self._score = (
            Linear(config.hidden_size, labels, placement, bias=False) if share.last else None
        )

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return on_this_stage(self._score)(pad_rows(hidden))[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        return super().parts() if self._score is None else (*super().parts(), self._score)
