"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671, arXiv:2412.15115), Qwen3 (Yang et al.
2025, arXiv:2505.09388): Llamas with biases in the products of queries, keys and values, or with
norms of queries and keys; later layers may attend within a window."""

from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    narrowed,
    read_causal,
    read_layers,
    read_window,
)
from workers.contract.families.base import decoder, shape_of
from workers.contract.model_shape import DecoderConfig, ModelShape, Sizes


def read_qwen2(keys: ConfigKeys) -> ModelShape:
    """As `Qwen2Config` of transformers. Raises ModelConfigError."""
    keys.neutral({"use_mrope": (False, None)})
    return _shape(keys, read_sizes(keys), qkv_bias=True, output_bias=False, qk_norm=False)


def read_qwen3(keys: ConfigKeys) -> ModelShape:
    """As `Qwen3Config` of transformers. Raises ModelConfigError."""
    sizes = read_sizes(keys, head_dim=128)
    bias = keys.read("attention_bias", bool, False)
    return _shape(keys, sizes, qkv_bias=bias, output_bias=bias, qk_norm=True)


def _shape(
    keys: ConfigKeys, sizes: Sizes, *, qkv_bias: bool, output_bias: bool, qk_norm: bool
) -> ModelShape:
    everything = read_causal(keys, sizes)
    window = read_window(keys, 4096)
    # Published checkpoints declare a window that they do not use.
    used = window if keys.read("use_sliding_window", bool, False) else None
    narrow = narrowed(everything, used, sizes.max_position)
    without = keys.read("max_window_layers", int, 28)
    default = [everything if layer < without else narrow for layer in range(sizes.num_layers)]
    kinds = {FULL_ATTENTION: everything, SLIDING_ATTENTION: narrow}
    layers = read_layers(keys, kinds, default)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )
    return shape_of(keys, sizes, layers, family, tied=False)


QWEN2 = decoder("Qwen2", read_qwen2)
QWEN3 = decoder("Qwen3", read_qwen3)
