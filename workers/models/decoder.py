"""Decoders with RMSNorms and rotary positions, such as Llama. `DecoderConfig` says what differs
between them."""

import re
from collections.abc import Callable, Iterable
from typing import ClassVar, cast

import torch
import torch.nn.functional as F

from workers.contract.model_config import DecoderConfig, ModelConfig, ModelConfigError
from workers.layers.layer import Layer, Placement, Rows, Vector
from workers.layers.linear import Embedding, Linear
from workers.layers.norm import QKNorm, RMSNorm
from workers.models.base import StageLayer, StageModel, family_config, on_this_stage
from workers.models.feed_forward import feed_forward
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


_UNUSED = (
    r"unused\..*|model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"
)
"""Tensors that follow from the configuration, and parts that are not served."""


def qkv_product(
    config: ModelConfig, family: DecoderConfig, layer: int, placement: Placement
) -> Linear:
    """The product of a layer's queries, then keys, then values, as far as it has its own.

    A head's dimensions i and i + R / 2 are a pair, from tensors in the order of the checkpoint (see
    `DecoderConfig`).
    """
    name, pairs = f"model.layers.{layer}.self_attn", family.interleaved_dims
    heads, kv_heads, dim = config.heads_of(layer)
    turned, straight = [*range(0, pairs, 2), *range(1, pairs, 2), *range(pairs, dim)], [*range(dim)]

    def rows(order: Iterable[int], dims: list[int], total: int) -> Rows:
        return Rows(tuple(head * dim + own for head in order for own in dims), total * dim)

    parts = {"q": rows(range(heads), turned, heads)}
    if config.kv_layer(layer) == layer:
        parts["k"] = rows(range(kv_heads), turned, kv_heads)
        if not config.keys_are_values(layer):
            parts["v"] = rows(range(kv_heads), straight, kv_heads)
    if family.fused_qkv:
        order = range(total := heads + 2 * kv_heads)
        if family.fused_qkv == "groups":
            size = total // kv_heads
            order = sorted(order, key=lambda head: max(0, head % size - size + 3))
        own = rows(order[: heads + kv_heads], turned, total)
        values = rows(order[heads + kv_heads :], straight, total)
        parts = {"qkv": Rows(own.kept + values.kept, total * dim)}
    members = {f"{name}.{part}_proj": rows for part, rows in parts.items()}
    return Linear(
        config.hidden_size,
        {member: len(rows.kept) for member, rows in members.items()},
        placement,
        bias=family.qkv_bias,
        rows={name: rows for name, rows in members.items() if [*rows.kept] != [*range(rows.total)]},
    )


class DecoderLayer(StageLayer):
    """Attention and a feed-forward network. Each adds its output to its input, of which one is
    normalised, or both are."""

    def __init__(self, config: ModelConfig, layer: int, placement: Placement) -> None:
        family, name = family_config(config, DecoderConfig), f"model.layers.{layer}"
        size, attention = config.hidden_size, f"{name}.self_attn"
        heads, kv_heads, self._head_dim = config.heads_of(layer)
        norm, wide = rms_norms(family, placement), family.qk_norm == "width"
        if family.qk_norm:
            counts = {"q": heads} | ({"k": kv_heads} if config.kv_layer(layer) == layer else {})
            self._head_norms = [
                norm(f"{attention}.{part}_norm", self._head_dim * (count if wide else 1))
                for part, count in counts.items()
            ]
            # A layer with another's keys has none to normalise.
            query, key = (self._head_norms[at].parameters.weight for at in (0, -1))
            rotated = family.qk_norm == "rotated"
            self.qk_norm = QKNorm(query, key, family.norm_eps, rotated, family.value_norm)
        self._qkv = qkv_product(config, family, layer, placement)
        if config.attention[config.layer_kinds[layer]].sinks:
            self._sinks = Vector(f"{attention}.sinks", heads, placement)
            self.sinks = self._sinks.values
        queries, output = heads * self._head_dim, {f"{attention}.o_proj": size}
        self._output = Linear(queries, output, placement, bias=family.output_bias)
        before, after = family.input_norms, family.output_norms
        self._input_norm = norm(f"{name}.input_layernorm", size) if before else None
        after_attention = norm(f"{name}.post_attention_layernorm", size)
        self._output_norm = after_attention if after else None
        self._mlp_norm = None
        if before:
            sandwich = f"{name}.pre_feedforward_layernorm"
            self._mlp_norm = norm(sandwich, size) if after else after_attention
        self._down_norm = norm(f"{name}.post_feedforward_layernorm", size) if after else None
        self._mlp = feed_forward(config, family, layer, placement)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(hidden, self._input_norm).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        rows, norm = attended.flatten(1), self._output_norm
        if norm is None:
            hidden = self._output.add_to(hidden, rows)
        else:
            hidden = norm.add_to(hidden, self._output(rows))
        if (norm := self._down_norm) is None:
            return self._mlp.add_to(hidden, hidden, self._mlp_norm)
        return norm.add_to(hidden, self._mlp(hidden, self._mlp_norm))


def rms_norms(family: DecoderConfig, placement: Placement) -> Callable[[str, int], RMSNorm]:
    """(name, size) -> a norm of the family's kind."""
    eps, unit_offset = family.norm_eps, family.unit_offset_norms
    return lambda name, size: RMSNorm(name, size, eps, placement, unit_offset=unit_offset)


class DecoderModel(StageModel):
    """One stage of a decoder without an LM head (see `StageModel`): its token states are pooled."""

    unused = re.compile(rf"lm_head\.(weight|bias)|{_UNUSED}")
    embedding_name = "model.embed_tokens"
    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        family, size = family_config(config, DecoderConfig), config.hidden_size
        name, words, scale = self.embedding_name, config.vocab_size, family.embedding_scale
        first, last = self.share.first, self.share.last
        self._embedding = Embedding(name, words, size, placement, scale=scale) if first else None
        for further in range(config.num_layers, config.num_layers + family.further_layers):
            self.unused = re.compile(rf"{self.unused.pattern}|model\.layers\.{further}\..*")
        self.layers = [self.layer_class(config, layer, placement) for layer in self.share.layers]
        self._final_norm = rms_norms(family, placement)("model.norm", size) if last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embedding)(step.tokens)


class DecoderForCausalLM(DecoderModel):
    """One stage of a decoder with its LM head."""

    unused = re.compile(_UNUSED)
    lm_head_name = "lm_head"
    _normed_head = False

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, cap = super().compute_logits(hidden), self._softcap
        if self._scale != 1:
            logits.mul_(self._scale)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def adjust(self) -> None:
        if self._normed_head:
            for weight in cast("Linear", self._head).weights().values():
                weight.copy_(F.normalize(weight.float()))
        super().adjust()

    def _make_head(self, config: ModelConfig, placement: Placement) -> Linear | TokenScores:
        family = family_config(config, DecoderConfig)
        self._softcap, self._scale = family.logit_softcap, family.logit_scale
        self._normed_head = family.normed_head
        words, tied = self._embedding, config.tie_word_embeddings
        if config.reranking is None:
            return self._make_lm_head(config, placement, words, bias=family.head_bias)
        if family.head_bias or family.normed_head:
            reason = "its LM head has a bias or a norm"
            raise ModelConfigError(f"{config.architecture} cannot rerank: {reason}")
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
