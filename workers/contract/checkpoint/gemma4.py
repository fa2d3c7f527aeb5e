"""Reads what `config.json` says of Gemma 4's text decoder, as transformers' `Gemma4TextConfig` and
`Gemma4UnifiedTextConfig`. Mixtures of experts and attention in both directions are refused.

Layers that attend to everything have heads of another size, perhaps fewer KV heads, and perhaps
keys as values. Before transformers 5.23 keys of their own say so, and since then those of each
layer. The last layers may attend to the keys and values of earlier ones (Brandon et al. 2024,
arXiv:2405.12981).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import MOST_TOKENS, MOST_WIDTH
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import (
    AttentionKind,
    Gemma4Config,
    LinearScaling,
    ModelShape,
    RopeConfig,
    Sizes,
)

_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "sliding_window": 512,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}


def read_gemma4(keys: ShapeKeys) -> ModelShape:
    keys.assume(_DEFAULTS)
    keys.neutral({"enable_moe_block": (False, None)})
    keys.ignore("expert_intermediate_size", "moe_intermediate_size", "num_experts", "top_k_experts")
    keys.ignore("vocab_size_per_layer_input")
    sizes, keyed = keys.read_sizes(), keys.read("attention_k_eq_v", bool, False)
    within, full = _read_kinds(keys, sizes)
    layers = keys.read_periodic_layers(sizes, full, within, 6)
    layers[-1] = full  # whatever its type is called
    everything = [kind is full for kind in layers]
    sources = _read_sources(keys, everything)
    sharing = [layer for layer, source in enumerate(sources) if source != layer]
    own: dict[str, Any] = {}
    if inputs := keys.size("hidden_size_per_layer_input", MOST_WIDTH, least=0, default=256):
        own = {"per_layer_size": inputs, "per_layer_vocab": _read_per_layer_vocab(keys, sizes)}
    bias = keys.read("attention_bias", bool, False)
    family = Gemma4Config(
        hidden_act=keys.read_activation("hidden_activation", "gelu_pytorch_tanh"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        embedding_scale=sizes.hidden_size**0.5,
        logit_softcap=keys.read_softcap("final_logit_softcapping"),
        qk_norm="head",
        value_norm=True,
        output_norms=True,
        qkv_bias=bias,
        output_bias=bias,
        wide_layers=tuple(sharing) if keys.read("use_double_wide_mlp", bool, False) else (),
        keys_as_values=tuple(i for i, kind in enumerate(everything) if kind and keyed),
        **own,
    )
    layers = _with_heads(keys, sizes, layers, full, keyed=keyed)
    for layer in sharing:
        if layers[layer] != layers[sources[layer]]:
            found = f"layer {layer} has other heads than layer {sources[layer]}, whose keys it has"
            raise keys.error(f"per_layer_config: {found}")
    only_images = {"use_bidirectional_attention": ("vision", False, None)}
    shape = keys.shape(sizes, layers, family, tied=True, neutral=only_images)
    return msgspec.structs.replace(shape, kv_layers=tuple(sources) if sharing else ())


def read_gemma4_unified(keys: ShapeKeys) -> ModelShape:
    """Gemma 4 of 12B, whose class has neither experts nor inputs of layers."""
    keys.assume({"hidden_size_per_layer_input": 0, "sliding_window": 1024})
    return read_gemma4(keys)


def _read_kinds(keys: ShapeKeys, sizes: Sizes) -> tuple[AttentionKind, AttentionKind]:
    """Attention within a window, and to everything."""
    ropes = keys.nested("rope_parameters")
    full, within = (
        AttentionKind(causal=True, scale=1.0, rope=_read_rope(ropes.nested(name), theta, sizes))
        for name, theta in (("full_attention", 1_000_000.0), ("sliding_attention", 10_000.0))
    )
    return within.narrowed(keys.size("sliding_window"), sizes.max_position), full


def _read_rope(keys: ShapeKeys, theta: float, sizes: Sizes) -> RopeConfig:
    """A proportional rotary embedding, or one as other families have it."""
    if keys.read("rope_type", str, "default") != "proportional":
        return keys.read_own_rope(theta, None, sizes.max_position)
    factor = keys.read("factor", float, 1.0)
    return RopeConfig(
        theta=keys.read("rope_theta", float, theta),
        fraction=keys.read("partial_rotary_factor", float, 1.0),
        proportional=True,
        scaling=None if factor == 1 else LinearScaling(factor=factor),
    )


def _read_per_layer_vocab(keys: ShapeKeys, sizes: Sizes) -> int:
    words = keys.size("vocab_size_per_layer_input", MOST_TOKENS, default=262_144)
    if words < sizes.vocab_size:
        found = f"vocab_size_per_layer_input {words} is less than vocab_size {sizes.vocab_size}"
        raise keys.error(found)
    return words


def _with_heads(
    keys: ShapeKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    full: AttentionKind,
    *,
    keyed: bool,
) -> list[AttentionKind]:
    """The layers' kinds with their own heads, by `per_layer_config`. Without it, `full` layers have
    heads of their own size, and with keys as values perhaps their own number of KV heads."""
    head_dim = keys.size("global_head_dim", MOST_WIDTH, default=512)
    kv_heads = keys.optional_size("num_global_key_value_heads") if keyed else None
    keys.ignore("num_global_key_value_heads")
    of_full = _with_own_heads(keys, sizes, full, head_dim, kv_heads)
    if not keys.has("per_layer_config"):
        return [of_full if kind is full else kind for kind in layers]
    by_layer, kinds = keys.nested("per_layer_config"), list(layers)
    for name in by_layer.values:
        if not name.isdecimal() or int(name) >= len(layers):
            raise keys.error(f"per_layer_config has {name!r}, and there are {len(layers)} layers")
        own = by_layer.nested(name)
        head_dim, kv_heads = own.optional_size("head_dim"), own.optional_size("num_key_value_heads")
        kinds[int(name)] = _with_own_heads(keys, sizes, layers[int(name)], head_dim, kv_heads)
    return kinds


def _with_own_heads(
    keys: ShapeKeys, sizes: Sizes, kind: AttentionKind, head_dim: int | None, kv_heads: int | None
) -> AttentionKind:
    """The kind with heads of this size and so many KV heads, where these are not the model's."""
    if sizes.num_heads % (kv_heads or 1):
        found = f"{sizes.num_heads} attention heads are not divisible by {kv_heads}"
        raise keys.error(f"{found} key/value heads of a layer")
    return msgspec.structs.replace(
        kind,
        head_dim=None if head_dim == sizes.head_dim else head_dim,
        num_kv_heads=None if kv_heads == sizes.num_kv_heads else kv_heads,
    )


def _read_sources(keys: ShapeKeys, everything: Sequence[bool]) -> list[int]:
    """The layer to whose keys and values each attends. For the last ones that is the last before
    them that attends to `everything` as well, or also not."""
    sources, layers = [*range(len(everything))], len(everything)
    first = layers - keys.size("num_kv_shared_layers", least=0, default=0)
    keeping = {everything[layer]: layer for layer in range(first)}
    for layer in range(max(first, 0), layers):
        if everything[layer] not in keeping:
            found = f"num_kv_shared_layers {layers - first} leaves layer {layer}"
            raise keys.error(f"{found} no earlier layer of its type with keys and values")
        sources[layer] = keeping[everything[layer]]
    return sources
