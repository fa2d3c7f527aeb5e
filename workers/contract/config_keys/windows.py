"""Layers that attend within a window, alone or beside layers that attend to everything."""

from collections.abc import Sequence

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
"""The types of layers in `layer_types`."""


def read_window(keys: ConfigKeys, default: int | None) -> int | None:
    """`sliding_window` in tokens: `default` if `config.json` has no such key, none where it is
    null. Raises ModelConfigError for a window without tokens."""
    return keys.optional_size("sliding_window") if keys.has("sliding_window") else default


def windowed(
    kind: AttentionKind, window: int | None, slides: Sequence[bool]
) -> list[AttentionKind]:
    """The kind of attention of each layer.

    kind    that of layers without a window
    slides  whether each layer has one
    """
    narrow = msgspec.structs.replace(kind, window=window)
    return [narrow if slid else kind for slid in slides]
