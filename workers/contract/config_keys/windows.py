"""Layers that attend within a window, alone or beside layers that attend to everything."""

from collections.abc import Mapping, Sequence

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.rope import read_rope
from workers.contract.model_shape import Sizes

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
"""The types of layers in `layer_types`."""


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
    keys: ConfigKeys, kinds: Mapping[str, AttentionKind], default: Sequence[AttentionKind]
) -> Sequence[AttentionKind]:
    """The kind of attention of each layer, by its type in `layer_types`; without the key the
    `default`.

    Raises ModelConfigError for another type, or unless there is one for each layer.
    """
    names = keys.optional("layer_types", list[str])
    if names is None:
        return default
    if len(names) != len(default):
        raise keys.error(f"layer_types has {len(names)} entries for {len(default)} layers")
    for name in names:
        if name not in kinds:
            raise keys.error(f"layer_types has {name!r}, which is not supported here")
    return [kinds[name] for name in names]
