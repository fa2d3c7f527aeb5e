"""The configuration of a model: its shape, and how inputs and outputs are treated (no torch)."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from workers.contract.attention_kind import AttentionKind

PoolingMode = Literal["cls", "mean", "max", "last"]
SpladeStrategy = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
ValueT = TypeVar("ValueT")


class ModelConfigError(ValueError):
    """A checkpoint's configuration is missing, unreadable or not supported; one line says why."""


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an embedder turns token states into one vector (sentence-transformers' modules).

    `normalize`: the server scales vectors to length 1 unless a request says otherwise. Without
    `include_prompt`, the tokens of a prompt before the text are not pooled.
    """

    mode: PoolingMode = "mean"
    normalize: bool = True
    include_prompt: bool = True


class SpladeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a masked language model's logits become one sparse vector.

    Each logit x becomes log(1 + relu(x)), or log(1 + log(1 + relu(x))) with `log1p_relu`;
    `strategy` then reduces the tokens of a text to one value for each word of the vocabulary.
    """

    strategy: SpladeStrategy = "max"
    activation: SpladeActivation = "relu"


class EmbeddingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an embedder declares besides its pooling.

    `prompts` are texts put before inputs, by name (`config_sentence_transformers.json`);
    `default_prompt_name` is used if a request names none. Vectors of a matryoshka model may be
    truncated: to `matryoshka_dimensions`, ascending, or to any size if there are none (keys of
    `config.json`, as vLLM reads them). `similarity` is how two vectors are compared.
    """

    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    similarity: Similarity = "cosine"


class WrapperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint names the tensors of the language model that it wraps.

    Such names have the part `inner`; where it is, it has no meaning ("language_model.model.norm",
    "model.language_model.norm" and "model.norm" are the same). Tensors of the other models, such as
    a vision tower, have one of the parts `skipped`.
    """

    inner: str = "language_model"
    skipped: tuple[str, ...] = ("vision_tower", "vision_model", "visual", "multi_modal_projector")

    def inner_name(self, name: str) -> str | None:
        """A tensor's name within the language model; None if it is not of that."""
        parts = name.split(".")
        if any(part in self.skipped for part in parts):
            return None
        return ".".join(part for part in parts if part != self.inner)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture needs to build its layers. Lengths in tokens, sizes in elements.

    Scores of a classifier: the sigmoid of each logit if `sigmoid_scores`; otherwise the softmax for
    several labels, the raw logit for one. With `lowercase`, texts are put into lower case before
    they are tokenized. Layer i has the kind of attention `attention[layer_kinds[i]]`; all kinds are
    causal, or none is. `wrapper` is set for the language model of a larger one.
    """

    path: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    max_model_len: int
    lowercase: bool = False
    hidden_act: str
    norm_eps: float
    initializer_range: float
    checkpoint_dtype: str
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    attention: tuple[AttentionKind, ...]
    layer_kinds: tuple[int, ...]
    type_vocab_size: int
    num_labels: int
    labels: tuple[str, ...] = ()
    sigmoid_scores: bool
    pooling: PoolingConfig
    splade: SpladeConfig = SpladeConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    wrapper: WrapperConfig | None = None

    @property
    def has_kv_cache(self) -> bool:
        """Whether tokens see only those before them, so that keys and values can be kept."""
        return self.attention[0].causal


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelConfigError, naming the file, if it is not one."""
    return decoded(path, dict[str, Any])


def decoded(path: Path, kind: type[ValueT]) -> ValueT:
    """The value in `path`. Raises ModelConfigError, naming the file, unless it is a `kind`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelConfigError(f"{path.name} is missing from {path.parent}") from None
    except (OSError, RecursionError, msgspec.MsgspecError) as error:
        raise ModelConfigError(f"{path} cannot be read: {error}") from None
