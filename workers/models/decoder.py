"""Decoders whose blocks normalise their input, with a gated feed-forward network and rotary
positions, such as Llama. `DecoderConfig` says what differs between them."""

import re
from collections.abc import Callable

import torch

from workers.contract.model_config import DecoderConfig, ModelConfig
from workers.layers.activations import ACTIVATIONS
from workers.layers.layer import Layer, Placement, Rows
from workers.layers.linear import Embedding, Linear
from workers.layers.norm import QKNorm, RMSNorm
from workers.models.base import StageLayer, StageModel, family_config, on_this_stage
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class TokenScores(Layer):
    """The logits of K tokens, in float32. Only their rows of the LM head are loaded, or taken from
    a tied embedding on the same stage."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        in_features: int,
        placement: Placement,
        *,
        token_ids: tuple[int, ...],
        embedding: torch.Tensor | None = None,
    ) -> None:
        """`name` is the LM head's. The embedding is [vocab_size, in_features]."""
        self._name = f"{name}.weight"
        self._rows = Rows(token_ids, vocab_size)
        self._embedding = embedding
        self._weight = placement.empty(len(token_ids), in_features)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N, in_features] -> [N, K]"""
        states = states.float()
        # Not a product of matrices: a row's sums are the same beside any number of others.
        return torch.stack([(states * row).sum(1) for row in self._weight], 1)

    def weights(self) -> dict[str, torch.Tensor]:
        return {} if self._embedding is not None else {self._name: self._weight}

    def rows(self) -> dict[str, Rows]:
        return dict.fromkeys(self.weights(), self._rows)

    def pack(self) -> None:
        if self._embedding is not None:
            self._weight.copy_(self._embedding[list(self._rows.kept)])
        self._weight = self._weight.float()


_ROTARY_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"


class DecoderLayer(StageLayer):
    """Attention and a gated feed-forward network. Each normalises its input and adds its output to
    it, perhaps normalised too."""

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
        norm = _norms(family, placement)
        self._head_dim = config.head_dim
        self._input_norm = norm(f"{name}.input_layernorm", size)
        if family.qk_norm:
            names = (f"{attention}.{part}_norm" for part in "qk")
            query, key = self._head_norms = [norm(name, config.head_dim) for name in names]
            weights = query.parameters.weight, key.parameters.weight
            self.qk_norm = QKNorm(*weights, family.norm_eps)
        self._qkv = Linear(size, qkv, placement, bias=family.qkv_bias)
        self._output = Linear(
            queries, {f"{attention}.o_proj": size}, placement, bias=family.output_bias
        )
        after_attention = norm(f"{name}.post_attention_layernorm", size)
        self._output_norm = after_attention if sandwich else None
        self._mlp_norm = (
            norm(f"{name}.pre_feedforward_layernorm", size) if sandwich else after_attention
        )
        function, bias = ACTIVATIONS[family.hidden_act], family.mlp_bias
        self._gate_up = Linear(size, gate_up, placement, bias=bias, gate=function)
        self._down = Linear(inner, {f"{name}.mlp.down_proj": size}, placement, bias=bias)
        self._down_norm = norm(f"{name}.post_feedforward_layernorm", size) if sandwich else None

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(hidden, self._input_norm).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = _add(hidden, attended.flatten(1), self._output, self._output_norm)
        inner = self._gate_up(hidden, self._mlp_norm)
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
        self._final_norm = _norms(family, placement)("model.norm", size) if last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embedding)(step.tokens)


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
