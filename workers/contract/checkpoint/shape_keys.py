"""Reads what several families have in the same keys: sizes, rotary embeddings and windows."""

import math
from collections.abc import Sequence
from typing import Any, Self, get_args

import msgspec

from workers.contract.checkpoint.config_keys import (
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    ConfigKeys,
    Neutral,
)
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    DynamicScaling,
    FamilyConfig,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ModelShape,
    RopeConfig,
    RopeScaling,
    Sizes,
    YarnScaling,
)

_FULL, _SLIDING = "full_attention", "sliding_attention"
"""The types of layers in `layer_types`."""
_ROPES = "rope_scaling", "rope_parameters"


def default_sizes(*sizes: int, **others: Any) -> dict[str, Any]:
    """Defaults of the keys of sizes, in this order, and of `others`."""
    names = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
        num_key_value_heads max_position_embeddings"""
    return dict(zip(names.split(), sizes, strict=True)) | others


class ShapeKeys(ConfigKeys):
    """The keys of a `config.json` or of an object in it, from which a family reads its shape. All
    methods raise ModelConfigError."""

    def read_sizes(
        self, positions: str = "max_position_embeddings", *, widening: int | None = None
    ) -> Sizes:
        """The sizes, by their usual names (see `ConfigKeys.spell`), and the number of positions, by
        this name. Without an `intermediate_size`, it is `widening` times the hidden size."""
        hidden = self.size("hidden_size", MOST_WIDTH)
        heads = self.size("num_attention_heads", MOST_WIDTH)
        kv_heads = self.optional_size("num_key_value_heads") or heads
        head_dim = self.optional_size("head_dim", MOST_WIDTH)
        if head_dim is None and hidden % heads:
            raise self.error(f"hidden_size {hidden} is not divisible by {heads} attention heads")
        if heads % kv_heads:
            raise self.error(
                f"{heads} attention heads are not divisible by {kv_heads} key/value heads"
            )
        return Sizes(
            vocab_size=self.size("vocab_size", MOST_TOKENS),
            hidden_size=hidden,
            intermediate_size=self.size(
                "intermediate_size", MOST_WIDTH, default=widening and widening * hidden
            ),
            num_layers=self.size("num_hidden_layers", MOST_LAYERS),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim or hidden // heads,
            max_position=self.size(positions, MOST_TOKENS),
        )

    def read_activation(self, name: str, default: ActivationName = "silu") -> ActivationName:
        known: tuple[ActivationName, ...] = get_args(ActivationName)
        return self.choice(name, dict(zip(known, known, strict=True)), default)

    def read_rope(
        self, max_position: int, theta: float = 10_000.0, *, partial: bool = False
    ) -> RopeConfig:
        """The rotary embedding, in `rope_parameters` or, before transformers 5, in other keys.

        `max_position` is the length that the model declares, `theta` the default of its class in
        transformers. In some classes it may be `partial`, of a part of each head.
        """
        theta = self.read("rope_theta", float, theta)
        original = self.optional_size("original_max_position_embeddings")
        fraction = self.read("partial_rotary_factor", float, 1.0) if partial else None
        return self.nested_rope().read_own_rope(theta, original, max_position, fraction)

    def read_ropes(
        self,
        max_position: int,
        thetas: tuple[float, float],
        earlier: Self | None = None,
    ) -> tuple[RopeConfig, RopeConfig]:
        """The embeddings of layers that attend to everything, and of those with a window.

        transformers 5 writes them by the types of layers; before, at most an `earlier` object was
        for the first. `thetas` are the bases where objects name none.
        """
        by_type = self.nested("rope_parameters")
        full, within = by_type.nested(_FULL), by_type.nested(_SLIDING)
        if earlier is not None and not self.has("rope_parameters"):
            full = earlier
        return (
            full.read_own_rope(thetas[0], None, max_position),
            within.read_own_rope(thetas[1], None, max_position),
        )

    def nested_rope(self) -> Self:
        """The object in which `config.json` describes the embedding. Empty if it has none."""
        given = [name for name in _ROPES if self.optional(name, dict[str, Any])]
        return self.nested(given[0] if given else _ROPES[1])

    def assume_rope(self, usual: dict[str, Any]) -> None:
        """Describe the embedding as is `usual`, where the file does not, or says null."""
        if not any(map(self.values.get, _ROPES)):
            self._values = {**self._values, _ROPES[1]: usual}

    def read_own_rope(
        self, theta: float, original: int | None, max_position: int, fraction: float | None = None
    ) -> RopeConfig:
        """The embedding that this object describes, of a `fraction` of each head where that is not
        said, of all of it if None.

        M-RoPE (Wang et al. 2024, arXiv:2409.12191) is RoPE for texts: it rotates each pair of
        dimensions by one of a token's three positions, in time, height and width, and those of
        texts' tokens are equal. So its sections change nothing.
        """
        self.optional("mrope_section", list[int])
        self.optional("mrope_interleaved", bool)
        if fraction is None:
            self.neutral({"partial_rotary_factor": (1, None)})
        else:
            fraction = self.read("partial_rotary_factor", float, fraction)
        kind = self.read("rope_type", str, self.read("type", str, "default"))
        return RopeConfig(
            theta=self.read("rope_theta", float, theta),
            fraction=1.0 if fraction is None else fraction,
            scaling=self.read_scaling(kind, original, max_position),
        )

    def read_scaling(
        self, kind: str, original: int | None, max_position: int
    ) -> RopeScaling | None:
        """The scaling of type `kind` that this object describes. `original` is the length before
        it, if that is declared outside of the object."""
        inner = self.optional_size("original_max_position_embeddings")
        original = original or inner or max_position
        match kind:
            case "default" | "mrope":
                return None
            case "linear":
                return LinearScaling(factor=self.required("factor", float))
            case "llama3":
                return Llama3Scaling(
                    factor=self.required("factor", float),
                    low_freq_factor=self.required("low_freq_factor", float),
                    high_freq_factor=self.required("high_freq_factor", float),
                    original_max_position=original,
                )
            case "yarn":
                return self._yarn(original)
            case "longrope":
                return self._longrope(original, max_position)
            case "dynamic":
                self.ignore("factor")
                return DynamicScaling(original_max_position=original)
            case _:
                raise self.error(
                    f"rope type {kind!r} is not supported (default, linear, llama3, yarn, "
                    "longrope, dynamic)"
                )

    def _yarn(self, original: int) -> YarnScaling:
        """An attention factor that is not named is as transformers computes it."""

        def growth(scale: float) -> float:
            return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

        factor = self.required("factor", float)
        scale, scale_of_all = self.optional("mscale", float), self.optional("mscale_all_dim", float)
        attention = self.optional("attention_factor", float)
        if factor * original > MOST_TOKENS:
            raise self.error(f"rope type 'yarn' makes of {original} tokens more than {MOST_TOKENS}")
        if attention is None:
            attention = growth(1.0)
            if scale and scale_of_all:
                attention = growth(scale) / growth(scale_of_all)
        return YarnScaling(
            factor=factor,
            original_max_position=original,
            beta_fast=self.optional("beta_fast", float) or 32.0,
            beta_slow=self.optional("beta_slow", float) or 1.0,
            truncate=self.read("truncate", bool, True),
            attention_factor=attention,
        )

    def _longrope(self, original: int, max_position: int) -> LongScaling:
        """An attention factor that is not named is as transformers computes it."""
        factor = self.read("factor", float, max_position / original)
        attention = self.optional("attention_factor", float)
        if attention is None and original == 1:  # whose logarithm is 0
            raise self.error("rope type 'longrope' for texts of 1 token has no attention factor")
        if attention is None:
            attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return LongScaling(
            short_factors=tuple(self.required("short_factor", list[float])),
            long_factors=tuple(self.required("long_factor", list[float])),
            original_max_position=original,
            attention_factor=attention,
        )

    def read_softcap(self, name: str) -> float | None:
        cap = self.optional(name, float)
        if cap is not None and cap <= 0:
            raise self.error(f"{name} {cap:g} is not more than 0")
        return cap

    def read_causal(
        self, sizes: Sizes, rope: RopeConfig | None = None, *, partial: bool = False
    ) -> AttentionKind:
        """Attention of rotated queries and keys to all tokens before (see `read_rope`)."""
        return AttentionKind(
            causal=True,
            scale=sizes.head_dim**-0.5,
            rope=rope or self.read_rope(sizes.max_position, partial=partial),
        )

    def read_causal_or_not(self, sizes: Sizes, rope: RopeConfig | None = None) -> AttentionKind:
        """As `read_causal`. To tokens behind too, if the file says so of a decoder that embeds."""
        kind = self.read_causal(sizes, rope)
        if self.read("is_causal", bool, True):
            return kind
        self.neutral({"pooling": ("avg", None)})  # the default without modules, as here
        return msgspec.structs.replace(kind, causal=False)

    def read_window(self, kind: AttentionKind) -> int | None:
        """The window of `kind`. In both directions, transformers sees one token more."""
        window = self.optional_size("sliding_window")
        return window if window is None or kind.causal else window + 1

    def read_layers(
        self, full: AttentionKind, sliding: AttentionKind | None, usual: Sequence[bool]
    ) -> list[AttentionKind]:
        """The kind of attention of each layer, by its type in `layer_types`. Without it, layers
        are `full` where `usual` is true."""
        kinds = {_FULL: full} if sliding is None else {_FULL: full, _SLIDING: sliding}
        names = self.read("layer_types", list[str], [_FULL if own else _SLIDING for own in usual])
        if len(names) != len(usual):
            raise self.error(f"layer_types has {len(names)} entries for {len(usual)} layers")
        for name in names:
            if name not in kinds:
                raise self.error(f"layer_types has {name!r}, which is not supported here")
        return [kinds[name] for name in names]

    def read_same_layers(self, sizes: Sizes, kind: AttentionKind) -> list[AttentionKind]:
        """`kind` for each layer."""
        return self.read_layers(kind, None, [True] * sizes.num_layers)

    def read_periodic_layers(
        self, sizes: Sizes, full: AttentionKind, sliding: AttentionKind, period: int
    ) -> list[AttentionKind]:
        """As `read_layers`: without `layer_types` the last of every `period` layers is `full`."""
        usual = [layer % period == 0 for layer in range(1, sizes.num_layers + 1)]
        return self.read_layers(full, sliding, usual)

    def read_biases(self, *, attention: bool = False) -> dict[str, Any]:
        """Biases of attention's products and of the feed-forward network's, as fields of a
        DecoderConfig. `attention` is the default of the former."""
        bias = self.read("attention_bias", bool, attention)
        mlp_bias = self.read("mlp_bias", bool, False)
        return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": mlp_bias}

    def shape(
        self,
        sizes: Sizes,
        layers: Sequence[AttentionKind],
        family: FamilyConfig,
        *,
        tied: bool,
        neutral: Neutral | None = None,
    ) -> ModelShape:
        """The shape of a model whose layers have the kinds of attention `layers`. `tied` is the
        default of `tie_word_embeddings`. What keys say of the direction of attention must be so, in
        the words of the family if these are `neutral`."""
        kinds = tuple(dict.fromkeys(layers))
        causal = kinds[0].causal
        directions = {
            "is_causal": (causal, None),
            "use_bidirectional_attention": (not causal, None),
        }
        self.neutral({**directions, **(neutral or {})})
        if "per_layer_config" not in self._read:
            self.neutral({"per_layer_config": (None, {})})
        return ModelShape(
            **msgspec.structs.asdict(sizes),
            tie_word_embeddings=self.read("tie_word_embeddings", bool, tied),
            attention=kinds,
            layer_kinds=tuple(kinds.index(kind) for kind in layers),
            family=family,
        )
