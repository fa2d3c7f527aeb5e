"""What `penstock inspect` says of a model, as records: the keys of its JSON."""

from typing import Literal

import msgspec

from workers.contract.config import Dtype, Task
from workers.contract.model_config import AttentionKind

SizesFrom = Literal["weight files", "shape"]


class LayersOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """The layers, by number, whose attention computes the same."""

    num_layers: int
    layers: tuple[int, ...]
    attention: AttentionKind


class InspectedStage(msgspec.Struct, frozen=True, kw_only=True):
    """What one pipeline stage holds: `num_layers` layers from number `first_layer`.

    `kv_bytes` are the keys and values of 1,000 tokens.
    """

    first_layer: int
    num_layers: int
    weight_bytes: int
    kv_bytes: int


class InspectedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that `config.json` describes, and what serving it would take. Sizes in bytes.

    dtype             computed with; `checkpoint_dtype` is what config.json names
    parameters        numbers in its weights, as `parameters_from` tells: by the heads of the weight
                      files, or by its shape, without norms and biases
    weight_bytes      of all stages; a tied embedding is counted again where the last of several
                      stages has a copy
    kv_bytes          keys and values of 1,000 tokens, 0 without a KV cache
    kv_bytes_full     those of one sequence of `max_model_len` tokens; of which `kv_bytes_unused`
                      are of tokens that a layer's window has left behind
    wrapped           whether it is the language model of a larger one
    """

    architecture: str
    family: str
    task: Task
    kv_cache: bool
    wrapped: bool
    max_model_len: int
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention: tuple[LayersOfKind, ...]
    dtype: Dtype
    checkpoint_dtype: str
    parameters: int
    parameters_from: SizesFrom
    weight_bytes: int
    kv_bytes: int
    kv_bytes_full: int
    kv_bytes_unused: int
    stages: tuple[InspectedStage, ...]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """`refused` has one line for each reason why `penstock serve` would not start with this model.
    `notes` are what it would do besides. Without `model`, config.json cannot be read as one."""

    source: str
    folder: str
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    model: InspectedModel | None
