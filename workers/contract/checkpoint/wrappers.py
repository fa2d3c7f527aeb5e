"""Reads what `config.json` says of a language model beside a vision tower, which is served alone.

Its keys are in `text_config`, or in first checkpoints of Qwen2-VL and Qwen2.5-VL
(arXiv:2409.12191, arXiv:2502.13923) among the wrapper's own. Some versions of transformers leave
out of the object what is its class's default, and others repeat its keys outside of it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from workers.contract.checkpoint.decoders import (
    read_gemma3,
    read_ministral3,
    read_mistral,
    read_qwen2,
    read_qwen3,
)
from workers.contract.checkpoint.expert_decoders import read_qwen3_vl_moe_text
from workers.contract.checkpoint.gemma4 import read_gemma4, read_gemma4_unified
from workers.contract.checkpoint.shape_keys import ShapeKeys, default_sizes
from workers.contract.model_config import ModelShape

_QWEN2_VL = default_sizes(
    *(152_064, 8192, 29_568, 80, 64, 8, 32_768),
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    max_window_layers=80,
)
_QWEN3_VL = default_sizes(151_936, 4096, 22_016, 32, 32, 32, 128_000, rope_theta=5e5)
_QWEN3_VL_MOE = default_sizes(151_936, 2048, 5632, 24, 16, 16, 128_000, rope_theta=5e5)
_MISTRAL = default_sizes(32_000, 4096, 14_336, 32, 32, 8, 131_072)
_GEMMA3 = default_sizes(262_208, 2304, 9216, 26, 8, 4, 131_072)
_GEMMA3_KEYS = "boi_token_index eoi_token_index image_token_index mm_tokens_per_image"
_GEMMA4 = default_sizes(262_144, 2304, 9216, 30, 8, 4, 131_072)
_GEMMA4_UNIFIED = default_sizes(262_144, 2304, 9216, 30, 8, 4, 262_144, sliding_window=1024)
_GEMMA4_KEYS = """audio_config audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index
    eoi_token_id image_token_id video_token_id vision_soft_tokens_per_image"""
_QWEN_KEYS = """image_token_id video_token_id vision_start_token_id vision_end_token_id
    vision_token_id"""
_MISTRAL3_KEYS = """image_token_index image_token_id multimodal_projector_bias projector_hidden_act
    spatial_merge_size vision_feature_layer"""


def read_gemma3_wrapper(keys: ShapeKeys) -> ModelShape:
    return _read_text(keys, read_gemma3, _GEMMA3, _GEMMA3_KEYS)


def read_gemma4_wrapper(keys: ShapeKeys) -> ModelShape:
    return _read_text(keys, read_gemma4, _GEMMA4, _GEMMA4_KEYS)


def read_gemma4_unified_wrapper(keys: ShapeKeys) -> ModelShape:
    return _read_text(keys, read_gemma4_unified, _GEMMA4_UNIFIED, _GEMMA4_KEYS)


def read_qwen2_vl(keys: ShapeKeys) -> ModelShape:
    return _read_text(keys, read_qwen2, _QWEN2_VL, _QWEN_KEYS)


def read_qwen3_vl(keys: ShapeKeys) -> ModelShape:
    return _read_text(keys, _read_qwen3_vl_text, _QWEN3_VL, _QWEN_KEYS)


def _read_qwen3_vl_text(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"use_sliding_window": (False, None)})  # transformers reads no window
    return read_qwen3(keys)


def read_qwen3_vl_moe(keys: ShapeKeys) -> ModelShape:
    """Whatever the text says, transformers ties as the wrapper says."""
    shape = _read_text(keys, read_qwen3_vl_moe_text, _QWEN3_VL_MOE, _QWEN_KEYS)
    tied = keys.read("tie_word_embeddings", bool, False)
    return msgspec.structs.replace(shape, tie_word_embeddings=tied)


def read_mistral3(keys: ShapeKeys) -> ModelShape:
    """Mistral Small 3.1 and its like, or by the type of the text's model Ministral 3."""
    return _read_text(keys, _read_any_mistral, {}, _MISTRAL3_KEYS)


def _read_any_mistral(keys: ShapeKeys) -> ModelShape:
    readers = {"mistral": read_mistral, "ministral3": read_ministral3}
    read_shape = keys.choice("model_type", readers, "mistral")
    if read_shape is read_mistral:
        keys.assume(_MISTRAL)
    return read_shape(keys)


def _read_text(
    keys: ShapeKeys,
    read_shape: Callable[[ShapeKeys], ModelShape],
    defaults: dict[str, Any],
    beside: str,
) -> ModelShape:
    """The shape that `read_shape` makes of the text's keys. Those `beside` it are of other parts.

    The text says whether it is tied, or else the wrapper: versions of transformers differ in whom
    they obey, and where it matters one of them would find the LM head missing, or another one.
    """
    has_own = keys.has("text_config")
    text = keys.nested("text_config") if has_own else keys
    tied = keys.optional("tie_word_embeddings", bool)
    if tied is not None:
        text.assume({"tie_word_embeddings": tied})
    text.assume(defaults)
    keys.ignore("vision_config", *beside.split())
    if has_own:
        text.ignore(*beside.split())
        keys.ignore(*text.values)
        if dtype := text.optional("dtype", str):  # Qwen3-VL says it here alone
            keys.assume({"torch_dtype": dtype})
    return msgspec.structs.replace(read_shape(text), wrapped=True)
