"""Small engine configurations for tests without workers."""

from typing import Any

import msgspec

from engine_core.config import EngineConfig
from workers.contract.cache_layout import CacheLayout
from workers.contract.config import ExecutionConfig
from workers.contract.model_config import AttentionKind, DecoderConfig, ModelConfig, RopeConfig

MODEL = ModelConfig(
    path="",
    architecture="LlamaForCausalLM",
    vocab_size=50,
    hidden_size=4,
    intermediate_size=8,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    max_position=256,
    max_model_len=256,
    checkpoint_dtype="float32",
    tie_word_embeddings=False,
    attention=(AttentionKind(causal=True, scale=1.0, rope=RopeConfig()),),
    layer_kinds=(0,) * 2,
    family=DecoderConfig(hidden_act="silu", norm_eps=1e-6),
    num_labels=1,
    sigmoid_scores=False,
)

LLAMA_8B = msgspec.structs.replace(
    MODEL,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    layer_kinds=(0,) * 32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
)

ENCODER = msgspec.structs.replace(MODEL, attention=(AttentionKind(causal=False, scale=1.0),))


def execution_config(num_stages: int = 1, **changes: Any) -> ExecutionConfig:
    """An ExecutionConfig with small numbers, of `num_stages` stages on the CPU; `changes` replace
    fields. Without a `model`, one that generates is causal, and any other is not."""
    fields: dict[str, Any] = {
        "name": "test",
        "model": MODEL if changes.get("task", "generate") == "generate" else ENCODER,
        "task": "generate",
        "devices": ("cpu",) * num_stages,
        "stage_layers": (),
        "steps_ahead": 1,
        "transport": "auto",
        "dtype": "float32",
        "load_format": "auto",
        "attention_backend": "auto",
        "threads": 1,
        "max_model_len": 256,
        "max_running": 8,
        "max_step_tokens": 32,
        "block_size": 4,
        "kv_cache_bytes": 0,
        "worker_endpoint": "",
        "token_endpoint": "",
        "start": "",
    }
    return ExecutionConfig(**(fields | changes))


def with_windows(*windows: int | None) -> ModelConfig:
    """A model with a layer of each of the `windows`, or without."""
    different = tuple(dict.fromkeys(windows))
    kinds = [AttentionKind(causal=True, scale=1.0, window=window) for window in different]
    numbers = tuple(different.index(window) for window in windows)
    return msgspec.structs.replace(
        MODEL, num_layers=len(windows), attention=tuple(kinds), layer_kinds=numbers
    )


def layout(block_size: int, *windows: int | None, step: int = 8) -> CacheLayout:
    """The layout of such a model; without `windows` of one with plain layers."""
    return CacheLayout.of(with_windows(*windows or (None,)), block_size, MODEL.max_model_len, step)


def engine_config(**changes: Any) -> EngineConfig:
    """An EngineConfig with small numbers; `changes` replace its fields and its execution's."""
    own = {key: changes.pop(key) for key in EngineConfig.__struct_fields__ if key in changes}
    fields: dict[str, Any] = {
        "max_pending_rows": 64,
        "max_pending_tokens": 4096,
        "client_endpoint": "",
    }
    return EngineConfig(execution=execution_config(**changes), **(fields | own))
