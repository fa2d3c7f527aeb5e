"""The configuration of a model: its shape, and how inputs and outputs are treated (no torch)."""

from pathlib import Path
from typing import Literal

import msgspec

from workers.contract.embedding_modules import (
    NormalizeConfig,
    PoolingConfig,
    VectorModule,
    vector_size,
)
from workers.contract.model_shape import ModelShape
from workers.contract.reranking import RerankConfig

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


class ModelConfigError(ValueError):
    """A checkpoint's configuration is missing, unreadable or not supported; one line says why."""


class UnsupportedKeyError(ModelConfigError):
    """A key of a JSON file that is not known, or whose value is not supported."""

    def __init__(self, file: Path, key: str, reason: str) -> None:
        """`reason` follows the key in the sentence."""
        super().__init__(f"{file}: {key} {reason}")
        self.file = file
        self.key = key


class SpladeConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"strategy": "pooling_strategy", "activation": "activation_function"},
):
    """How a masked language model's logits become one sparse vector; in JSON as the configuration
    of sentence-transformers' SpladePooling.

    Each logit x becomes log(1 + relu(x)), or log(1 + log(1 + relu(x))) with `log1p_relu`;
    `strategy` then reduces the tokens of a text to one value for each word of the vocabulary.
    """

    strategy: Literal["max", "sum"] = "max"
    activation: Literal["relu", "log1p_relu"] = "relu"


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


class ModelConfig(ModelShape, frozen=True, kw_only=True):
    """A model: its shape, and how inputs and outputs are treated. Lengths in tokens.

    Scores of a classifier: the sigmoid of each logit if `sigmoid_scores`; otherwise the softmax for
    several labels, the raw logit for one. With `lowercase`, texts are put into lower case before
    they are tokenized. `tokenizer_file` is where the tokenizer is, if not in `path`. `modules`
    follow an embedder's `pooling`, in order; if the last one normalises, the server does that,
    because a request may leave it out. `reranking` is given for a causal model that scores pairs,
    and for a causal classifier whose template is known.
    """

    path: str
    architecture: str
    max_model_len: int
    lowercase: bool = False
    checkpoint_dtype: str
    num_labels: int
    labels: tuple[str, ...] = ()
    sigmoid_scores: bool
    pooling: PoolingConfig = PoolingConfig()
    modules: tuple[VectorModule, ...] = ()
    splade: SpladeConfig = SpladeConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    reranking: RerankConfig | None = None
    tokenizer_file: str | None = None

    @property
    def reads_pairs(self) -> bool:
        """Whether it is known how the model is given a query with a text. An encoder's tokenizer
        says so; a causal model needs a template."""
        return self.reranking is not None or not self.has_kv_cache

    @property
    def normalized(self) -> bool:
        """Whether an embedder's vectors have length 1 unless a request says otherwise."""
        return bool(self.modules) and isinstance(self.modules[-1], NormalizeConfig)

    @property
    def worker_modules(self) -> tuple[VectorModule, ...]:
        """Those of `modules` that the last stage runs."""
        return self.modules[:-1] if self.normalized else self.modules

    @property
    def vector_size(self) -> int:
        """The numbers of an embedder's vector."""
        return vector_size(self.hidden_size, self.pooling, self.modules)
