"""A checkpoint's shape, and what else its files say of how it is to be run (no torch)."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

PoolingMode = Literal["cls", "mean", "max", "last"]
SpladeStrategy = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
ValueT = TypeVar("ValueT")
RopeType = Literal["default", "linear", "llama3"]


class ModelConfigError(ValueError):
    """A checkpoint's configuration is missing, unreadable or not supported; one line says why."""


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding: base, and the scaling of its frequencies.

    `llama3` is Llama 3.1's scaling by wavelength; `linear` divides every frequency by `factor`.
    """

    theta: float = 10_000.0
    type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an embedder turns token states into one vector (sentence-transformers' modules).

    `normalize`: the server gives vectors length 1 where a request does not say otherwise. Without
    `include_prompt` the tokens of a prompt before the text are not to be pooled.
    """

    mode: PoolingMode = "mean"
    normalize: bool = True
    include_prompt: bool = True


class SpladeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a masked language model's logits become one sparse vector: over a text's tokens the
    `strategy` of log(1 + relu(x)), or with `log1p_relu` of log(1 + log(1 + relu(x)))."""

    strategy: SpladeStrategy = "max"
    activation: SpladeActivation = "relu"


class EmbeddingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What else an embedder declares.

    `prompts` are what goes before texts, by name (`config_sentence_transformers.json`);
    `default_prompt_name` is the one for texts of which nothing is said. Vectors of a matryoshka
    model may be cut: to `matryoshka_dimensions`, ascending, or to any size where there are none
    (keys of `config.json`, as vLLM reads them). `similarity` is how two vectors are compared.
    """

    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    similarity: Similarity = "cosine"


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture needs to build its layers. Lengths in tokens, sizes in elements.

    A classifier's logits mean: with `sigmoid_scores` a probability each, otherwise, of one label,
    nothing beyond themselves, and of several, their softmax. With `lowercase` texts are put into
    lower case before they are tokenized.
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
    rope: RopeConfig
    type_vocab_size: int
    num_labels: int
    labels: tuple[str, ...] = ()
    sigmoid_scores: bool
    pooling: PoolingConfig
    splade: SpladeConfig = SpladeConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelConfigError, naming the file, where there is none."""
    return decoded(path, dict[str, Any])


def decoded(path: Path, kind: type[ValueT]) -> ValueT:
    """The value in `path`. Raises ModelConfigError, naming the file, unless it is one of `kind`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelConfigError(f"{path.name} is missing from {path.parent}") from None
    except (OSError, RecursionError, msgspec.MsgspecError) as error:
        raise ModelConfigError(f"{path} cannot be read: {error}") from None
