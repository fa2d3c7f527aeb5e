"""Reads what several families have in the same keys: sizes, rotary embeddings and windows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from workers.contract.checkpoint.config_keys import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, ConfigKeys
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

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
"""The types of layers in `layer_types`."""

_SCALINGS = "default, linear, llama3, yarn, longrope, dynamic"


def shape_of(
    keys: ConfigKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    family: FamilyConfig,
    *,
    tied: bool,
) -> ModelShape:
    """The shape of a model whose layers have the kinds of attention `layers`. `tied` says whether
    the LM head is the embedding if `config.json` does not. Raises ModelConfigError."""
    kinds = tuple(dict.fromkeys(layers))
    return ModelShape(
        **msgspec.structs.asdict(sizes),
        tie_word_embeddings=keys.read("tie_word_embeddings", bool, tied),
        attention=kinds,
        layer_kinds=tuple(kinds.index(kind) for kind in layers),
        family=family,
    )


def read_sizes(
    keys: ConfigKeys, head_dim: int | None = None, positions: str = "max_position_embeddings"
) -> Sizes:
    """The sizes, by their usual names (see `ConfigKeys.spell`). Without a key `head_dim` that size
    is the argument's, or follows from the hidden size. Key `positions` says how many positions
    there are. Raises ModelConfigError."""
    hidden = keys.size("hidden_size", MOST_WIDTH)
    heads = keys.size("num_attention_heads", MOST_WIDTH)
    kv_heads = keys.optional_size("num_key_value_heads") or heads
    if keys.has("head_dim"):
        head_dim = keys.optional_size("head_dim", MOST_WIDTH)
    if head_dim is None and hidden % heads:
        raise keys.error(f"hidden_size {hidden} is not divisible by {heads} attention heads")
    if heads % kv_heads:
        raise keys.error(f"{heads} attention heads are not divisible by {kv_heads} key/value heads")
    return Sizes(
        vocab_size=keys.size("vocab_size", MOST_TOKENS),
        hidden_size=hidden,
        intermediate_size=keys.size("intermediate_size", MOST_WIDTH),
        num_layers=keys.size("num_hidden_layers", MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        max_position=keys.size(positions, MOST_TOKENS),
    )


def read_activation(
    keys: ConfigKeys, name: str, default: ActivationName = "silu"
) -> ActivationName:
    """The activation function that key `name` names. Raises ModelConfigError, with those that are
    known."""
    known: tuple[ActivationName, ...] = get_args(ActivationName)
    return keys.choice(name, dict(zip(known, known, strict=True)), default)


def read_rope(keys: ConfigKeys, max_position: int, theta: float = 10_000.0) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`.

    `max_position` is the length that the model declares, `theta` what its class in transformers
    takes if `config.json` names none. Raises ModelConfigError.
    """
    theta = keys.read("rope_theta", float, theta)
    original = keys.optional_size("original_max_position_embeddings")
    return rope_of(rope_keys(keys), theta, original, max_position)


def rope_keys(keys: ConfigKeys) -> ConfigKeys:
    """The object in which `config.json` describes the embedding; empty if it has none."""
    names = ("rope_scaling", "rope_parameters")
    given = [name for name in names if keys.optional(name, dict[str, Any])]
    return keys.nested(given[0] if given else names[1])


def rope_of(keys: ConfigKeys, theta: float, original: int | None, max_position: int) -> RopeConfig:
    """The embedding that one object of `config.json` describes, with what is declared beside it.

    Raises ModelConfigError, also for a type of scaling that is not supported.
    """
    keys.neutral({"partial_rotary_factor": (1, None)})
    kind = keys.read("rope_type", str, keys.read("type", str, "default"))
    return RopeConfig(
        theta=keys.read("rope_theta", float, theta),
        scaling=read_scaling(keys, kind, original, max_position),
    )


def ropes_of_types(
    keys: ConfigKeys,
    max_position: int,
    thetas: tuple[float, float],
    earlier: ConfigKeys | None = None,
) -> tuple[RopeConfig, RopeConfig]:
    """The embeddings of layers that attend to everything, and of those with a window.

    transformers 5 writes them by the types of layers; earlier versions have at most an `earlier`
    object, for the first alone. `thetas` are the bases where the objects name none.
    """
    by_type = keys.nested("rope_parameters")
    full, within = by_type.nested(FULL_ATTENTION), by_type.nested(SLIDING_ATTENTION)
    if earlier is not None and not keys.has("rope_parameters"):
        full = earlier
    return (
        rope_of(full, thetas[0], None, max_position),
        rope_of(within, thetas[1], None, max_position),
    )


def read_scaling(
    keys: ConfigKeys, kind: str, original: int | None, max_position: int
) -> RopeScaling | None:
    """The scaling of type `kind` that one object describes. `original` is the length before it, if
    that is declared outside of the object; there it has precedence. Raises ModelConfigError."""
    inner = keys.optional_size("original_max_position_embeddings")
    original = original or inner or max_position
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=keys.required("factor", float))
        case "llama3":
            return Llama3Scaling(
                factor=keys.required("factor", float),
                low_freq_factor=keys.required("low_freq_factor", float),
                high_freq_factor=keys.required("high_freq_factor", float),
                original_max_position=original,
            )
        case "yarn":
            return _yarn(keys, original)
        case "longrope":
            return _longrope(keys, original, max_position)
        case "dynamic":
            keys.ignore("factor")
            return DynamicScaling(original_max_position=original)
        case _:
            raise keys.error(f"rope type {kind!r} is not supported ({_SCALINGS})")


def _yarn(keys: ConfigKeys, original: int) -> YarnScaling:
    """An attention factor that is not named is as transformers computes it."""

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    factor = keys.required("factor", float)
    scale, scale_of_all = keys.optional("mscale", float), keys.optional("mscale_all_dim", float)
    attention = keys.optional("attention_factor", float)
    if factor * original > MOST_TOKENS:
        raise keys.error(f"rope type 'yarn' makes of {original} tokens more than {MOST_TOKENS}")
    if attention is None:
        attention = growth(1.0)
        if scale and scale_of_all:
            attention = growth(scale) / growth(scale_of_all)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        beta_fast=keys.optional("beta_fast", float) or 32.0,
        beta_slow=keys.optional("beta_slow", float) or 1.0,
        truncate=keys.read("truncate", bool, True),
        attention_factor=attention,
    )


def _longrope(keys: ConfigKeys, original: int, max_position: int) -> LongScaling:
    """An attention factor that is not named is as transformers computes it."""
    factor = keys.read("factor", float, max_position / original)
    attention = keys.optional("attention_factor", float)
    if attention is None and original == 1:  # whose logarithm is 0
        raise keys.error("rope type 'longrope' for texts of 1 token has no attention factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongScaling(
        short_factors=tuple(keys.required("short_factor", list[float])),
        long_factors=tuple(keys.required("long_factor", list[float])),
        original_max_position=original,
        attention_factor=attention,
    )


def read_causal(keys: ConfigKeys, sizes: Sizes) -> AttentionKind:
    """Attention of rotated queries and keys to all tokens before. Raises ModelConfigError."""
    rope = read_rope(keys, sizes.max_position)
    return AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)


def read_window(keys: ConfigKeys, default: int | None) -> int | None:
    """`sliding_window` in tokens: `default` if `config.json` has no such key, none where it is
    null. Raises ModelConfigError for a window without tokens."""
    return keys.optional_size("sliding_window") if keys.has("sliding_window") else default


def narrowed(kind: AttentionKind, window: int | None, max_position: int) -> AttentionKind:
    """`kind` with a window, in a model that declares `max_position` positions. A window that holds
    every text is none: transformers' masks are the same with it and without."""
    longest = max_position if kind.rope is None else kind.rope.limit(max_position)
    holds_all = window is not None and window >= longest
    return msgspec.structs.replace(kind, window=None if holds_all else window)


def read_layers(
    keys: ConfigKeys, kinds: Mapping[str, AttentionKind], default: Sequence[str]
) -> list[AttentionKind]:
    """The kind of attention of each layer, by its type in `layer_types` or else in `default`.

    Raises ModelConfigError for another type, or unless there is one for each layer.
    """
    names = keys.read("layer_types", list[str], list(default))
    if len(names) != len(default):
        raise keys.error(f"layer_types has {len(names)} entries for {len(default)} layers")
    for name in names:
        if name not in kinds:
            raise keys.error(f"layer_types has {name!r}, which is not supported here")
    return [kinds[name] for name in names]
