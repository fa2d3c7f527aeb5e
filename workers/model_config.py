"""A checkpoint's shape, read as data from the files beside its weights (no torch)."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

PoolingMode = Literal["cls", "mean", "max", "last"]
SpladeStrategy = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]
ValueT = TypeVar("ValueT")
RopeType = Literal["default", "linear", "llama3"]

_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_MASKED_LM = "BertForMaskedLM"
_SPLADE_MODULES = ("Transformer", "MLMTransformer", "SpladePooling")


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
    (keys of `config.json`, as vLLM reads them).
    """

    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture needs to build its layers. Lengths in tokens, sizes in elements.

    A classifier's logits mean: with `sigmoid_scores` a probability each, otherwise, of one label,
    nothing beyond themselves, and of several, their softmax.
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
    return _decoded(path, dict[str, Any])


def _decoded(path: Path, kind: type[ValueT]) -> ValueT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelConfigError(f"{path.name} is missing from {path.parent}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelConfigError(f"{path} cannot be read: {error}") from None


def read_model_config(path: Path) -> ModelConfig:
    """Read `config.json` and, for embedders, the sentence-transformers files in folder `path`.

    Raises ModelConfigError if a file or a needed key is missing or of the wrong type.
    """
    raw = read_json(path / "config.json")
    try:
        return _model_config(path, raw)
    except ModelConfigError:
        raise
    except KeyError as error:
        raise ModelConfigError(f"{path / 'config.json'} has no {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"{path / 'config.json'} is not valid: {error}") from None


def _model_config(path: Path, raw: dict[str, Any]) -> ModelConfig:
    architectures: list[str] = raw.get("architectures") or []
    if not architectures:
        raise ModelConfigError(f"{path / 'config.json'} names no architecture")
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    max_position = int(raw["max_position_embeddings"])
    sentence = _optional_json(path / "sentence_bert_config.json")
    modules = _modules(path)
    architecture = _architecture(architectures[0], modules)
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        max_position=max_position,
        max_model_len=min(int(sentence.get("max_seq_length") or max_position), max_position),
        hidden_act=str(raw.get("hidden_act", "gelu")),
        norm_eps=float(raw.get("rms_norm_eps", raw.get("layer_norm_eps", 1e-12))),
        initializer_range=float(raw.get("initializer_range", 0.02)),
        checkpoint_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", architecture == _MASKED_LM)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        rope=_rope_config(raw),
        type_vocab_size=int(raw.get("type_vocab_size", 0)),
        num_labels=_num_labels(raw),
        labels=_labels(raw),
        sigmoid_scores=_sigmoid_scores(raw),
        pooling=_pooling_config(path, modules),
        splade=_splade_config(path, modules) if architecture == _MASKED_LM else SpladeConfig(),
        embedding=_embedding_config(path, raw),
    )


def _rope_config(raw: dict[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`."""
    scaling: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelConfigError(f"rope type {kind!r} is not supported (default, linear, llama3)")
    return RopeConfig(
        theta=float(scaling.get("rope_theta", raw.get("rope_theta", 10_000.0))),
        type=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(scaling.get("original_max_position_embeddings", 8192)),
    )


def _num_labels(raw: dict[str, Any]) -> int:
    labels: dict[str, str] | None = raw.get("id2label")
    return len(labels) if labels else int(raw.get("num_labels", 2))


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """The labels' names, those that transformers makes up where the file has none."""
    names: dict[str, str] = raw.get("id2label") or {}
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(_num_labels(raw)))


def _sigmoid_scores(raw: dict[str, Any]) -> bool:
    """Whether each label has a probability of its own.

    Of several labels, if the checkpoint says that any number of them may hold; one label, by
    sentence-transformers' rule, unless its activation is the identity.
    """
    if _num_labels(raw) > 1:
        return raw.get("problem_type") == "multi_label_classification"
    settings: dict[str, Any] = raw.get("sentence_transformers") or {}
    declared = settings.get("activation_fn", raw.get("sbert_ce_default_activation_function", ""))
    return not str(declared).endswith("Identity")


class _Module(msgspec.Struct):
    """An entry of sentence-transformers' modules.json; `type` is a dotted class name."""

    type: str
    path: str


def _modules(path: Path) -> dict[str, str]:
    """The modules of a sentence-transformers folder: class name -> folder; empty of any other."""
    file = path / "modules.json"
    modules = _decoded(file, list[_Module]) if file.exists() else []
    return {module.type.rsplit(".", 1)[-1]: module.path for module in modules}


def _architecture(declared: str, modules: dict[str, str]) -> str:
    """What is to be built: of a masked language model whose states are pooled, the encoder."""
    return "BertModel" if declared == _MASKED_LM and "Pooling" in modules else declared


def _pooling_config(path: Path, modules: dict[str, str]) -> PoolingConfig:
    """The Pooling and Normalize modules of a sentence-transformers folder.

    A folder without them is pooled by the mean and not normalised, as sentence-transformers does.
    """
    raw = read_json(path / modules["Pooling"] / "config.json") if "Pooling" in modules else {}
    return PoolingConfig(
        mode=_pooling_mode(raw),
        normalize="Normalize" in modules,
        include_prompt=bool(raw.get("include_prompt", True)),
    )


def _pooling_mode(raw: dict[str, Any]) -> PoolingMode:
    named = raw.get("pooling_mode")
    modes = [named] if named else [mode for flag, mode in _POOLING_FLAGS.items() if raw.get(flag)]
    if not modes:
        return "mean"
    for known in _POOLING_FLAGS.values():
        if modes == [known]:
            return known
    known = ", ".join(_POOLING_FLAGS.values())
    raise ModelConfigError(f"pooling {modes} is not supported (one of {known})")


class _SpladePooling(msgspec.Struct):
    """The keys of a SpladePooling module's configuration that are obeyed."""

    pooling_strategy: SpladeStrategy = "max"
    activation_function: SpladeActivation = "relu"


def _splade_config(path: Path, modules: dict[str, str]) -> SpladeConfig:
    """The SpladePooling module of a sentence-transformers folder; its defaults where there are no
    modules at all. Raises ModelConfigError for modules that change what it makes."""
    if not modules:
        return SpladeConfig()
    others = sorted(set(modules) - set(_SPLADE_MODULES))
    if others or "SpladePooling" not in modules:
        what = f"{', '.join(others)} is not supported" if others else "no pooling"
        raise ModelConfigError(f"{path / 'modules.json'}: {what} (of {_MASKED_LM}: SpladePooling)")
    raw = _decoded(path / modules["SpladePooling"] / "config.json", _SpladePooling)
    return SpladeConfig(strategy=raw.pooling_strategy, activation=raw.activation_function)


class _Prompts(msgspec.Struct):
    """The keys of config_sentence_transformers.json that are obeyed."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


class _Matryoshka(msgspec.Struct):
    """The keys of config.json that say to what sizes an embedder's vectors may be cut."""

    is_matryoshka: bool | None = None
    matryoshka_dimensions: list[Annotated[int, Meta(ge=1)]] | None = None


def _embedding_config(path: Path, raw: dict[str, Any]) -> EmbeddingConfig:
    file = path / "config_sentence_transformers.json"
    settings = _decoded(file, _Prompts) if file.exists() else _Prompts()
    prompts = {name: prompt or "" for name, prompt in (settings.prompts or {}).items()}
    default = settings.default_prompt_name
    if default is not None and default not in prompts:
        raise ModelConfigError(f"{file}: default_prompt_name {default!r} is none of its prompts")
    try:
        matryoshka = msgspec.convert(raw, _Matryoshka)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{path / 'config.json'} is not valid: {error}") from None
    sizes = sorted(set(matryoshka.matryoshka_dimensions or ()))
    if sizes and sizes[-1] > (largest := int(raw["hidden_size"])):
        message = f"matryoshka_dimensions: {sizes[-1]} is more than {largest}, the hidden size"
        raise ModelConfigError(f"{path / 'config.json'}: {message}")
    return EmbeddingConfig(
        prompts=prompts,
        default_prompt_name=default,
        is_matryoshka=bool(sizes) or matryoshka.is_matryoshka is True,
        matryoshka_dimensions=tuple(sizes),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
