"""Reads the configuration of a model from the files beside its weights."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.contract.attention_kind import AttentionKind, RopeConfig
from workers.contract.checkpoint.sentence_transformers_checks import (
    check_sentence_transformers_files,
)
from workers.contract.checkpoint.sentence_transformers_files import (
    ModelFile,
    Module,
    TransformerFile,
    read_model_file,
    read_modules,
    read_pooling,
    read_splade,
    read_transformer_file,
)
from workers.contract.conventions import Conventions, Neutral, check_neutral
from workers.contract.families import FAMILIES
from workers.contract.model_config import (
    EmbeddingConfig,
    ModelConfig,
    ModelConfigError,
    decoded,
    read_json,
)

_BERTS_WITH_HEADS = ("BertForMaskedLM", "BertForSequenceClassification")
_LAYERS: Neutral = {"layer_types": ([], ["full_attention"])}
_ROPE: Neutral = {"partial_rotary_factor": (1, None)}


def read_model_config(path: Path) -> ModelConfig:
    """Read `config.json` and the files of sentence-transformers in folder `path`.

    Raises ModelConfigError if a file or a required key is missing or of the wrong type, or if a key
    changes what the model computes in a way that is not supported.
    """
    raw = read_json(path / "config.json")
    try:
        return _model_config(path / "config.json", raw)
    except ModelConfigError:
        raise
    except KeyError as error:
        raise ModelConfigError(f"{path / 'config.json'} has no {error}") from None
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ModelConfigError(f"{path / 'config.json'} is not valid: {error}") from None


def _model_config(file: Path, raw: dict[str, Any]) -> ModelConfig:
    architectures: list[str] = raw.get("architectures") or []
    if not architectures:
        raise ModelConfigError(f"{file} names no architecture")
    folder = file.parent
    modules, transformer = read_modules(folder), read_transformer_file(folder)
    model = read_model_file(folder)
    architecture = _architecture(architectures[0], modules)
    family = FAMILIES.get(architecture)
    if family is not None:
        _check(file, raw, modules, family.conventions)
    usual = (family or FAMILIES["BertModel"]).conventions
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    max_position = int(raw["max_position_embeddings"])
    head_dim = int(raw.get("head_dim") or hidden // heads)
    causal = usual.task == "text-generation"
    layers = int(raw["num_hidden_layers"])
    return ModelConfig(
        path=str(folder),
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        max_position=max_position,
        max_model_len=min(_own_limit(folder, transformer, usual) or max_position, max_position),
        lowercase=transformer.do_lower_case,
        hidden_act=str(raw.get("hidden_act", usual.hidden_act)),
        norm_eps=float(raw.get(usual.norm_eps_key, usual.norm_eps)),
        initializer_range=float(raw.get("initializer_range", 0.02)),
        checkpoint_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", usual.tied)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        attention=(
            AttentionKind(
                causal=causal,
                scale=head_dim**-0.5,
                rope=_rope_config(file, raw, max_position) if causal else None,
            ),
        ),
        layer_kinds=(0,) * layers,
        type_vocab_size=int(raw.get("type_vocab_size", 2)),
        num_labels=_num_labels(raw),
        labels=_labels(raw),
        sigmoid_scores=_sigmoid_scores(file, raw, model.activation_fn),
        pooling=read_pooling(folder, modules),
        splade=read_splade(folder, modules),
        embedding=_embedding_config(file, raw, model),
    )


def _architecture(declared: str, modules: list[Module]) -> str:
    """The architecture to build: without its head, if a BERT's token states are pooled."""
    pooled = any(module.kind == "Pooling" for module in modules)
    return "BertModel" if declared in _BERTS_WITH_HEADS and pooled else declared


def _check(
    file: Path, raw: dict[str, Any], modules: list[Module], conventions: Conventions
) -> None:
    """Raises ModelConfigError for a key that changes the model's numbers and is not supported."""
    check_neutral(file, raw, conventions.neutral)
    layers: list[str] = raw.get("layer_types") or []
    check_neutral(file, {"layer_types": sorted(set(layers))}, _LAYERS)
    if (adapter := file.with_name("adapter_config.json")).exists():
        raise ModelConfigError(f"{adapter}: adapters are not supported; merge it into the weights")
    check_sentence_transformers_files(file.parent, modules, conventions)


def _own_limit(path: Path, transformer: TransformerFile, conventions: Conventions) -> int | None:
    """The length to which sentence-transformers truncates texts. The limit in a generator's
    `tokenizer_config.json` is ignored, as in transformers."""
    if transformer.max_seq_length or conventions.task == "text-generation":
        return transformer.max_seq_length
    file = path / "tokenizer_config.json"
    limit = decoded(file, _TokenizerFile).model_max_length if file.exists() else None
    return int(limit) if limit else None


def _rope_config(file: Path, raw: dict[str, Any], max_position: int) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`."""
    scaling: dict[str, Any] = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in scaling.values()):
        raise ModelConfigError(f"{file}: rope_parameters by layer type are not supported")
    check_neutral(file, scaling, _ROPE)
    theta = float(scaling.get("rope_theta", raw.get("rope_theta", 10_000.0)))
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return RopeConfig(theta=theta)
        case "linear":
            return RopeConfig(theta=theta, type="linear", factor=float(scaling["factor"]))
        case "llama3":
            original = scaling.get("original_max_position_embeddings", max_position)
            return RopeConfig(
                theta=theta,
                type="llama3",
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_max_position=int(raw.get("original_max_position_embeddings", original)),
            )
        case kind:
            raise ModelConfigError(
                f"{file}: rope type {kind!r} is not supported (default, linear, llama3)"
            )


def _num_labels(raw: dict[str, Any]) -> int:
    labels: dict[str, str] | None = raw.get("id2label")
    return len(labels) if labels else int(raw.get("num_labels", 2))


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """The labels' names; without names in the file, those that transformers makes up."""
    names: dict[str, str] = raw.get("id2label") or {}
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(_num_labels(raw)))


def _sigmoid_scores(file: Path, raw: dict[str, Any], declared: str | None) -> bool:
    """Whether the sigmoid turns each logit into a probability.

    One label: yes, unless its activation is the identity (sentence-transformers' rule). Several
    labels: if their activation is the sigmoid, or the checkpoint is a multi-label classifier.
    `declared` has precedence over keys that earlier versions of the library wrote into
    `config.json`.
    """
    settings: dict[str, Any] = raw.get("sentence_transformers") or {}
    earlier = settings.get("activation_fn") or raw.get("sbert_ce_default_activation_function")
    activation = str(declared or earlier or "")
    several = _num_labels(raw) > 1
    usual = not several or raw.get("problem_type") == "multi_label_classification"
    if not activation:
        return usual
    means = {"Identity": several and usual, "Sigmoid": True}
    if several:
        means["Softmax"] = False
    module, _, name = activation.rpartition(".")
    if name not in means or not module.startswith("torch.nn"):
        raise ModelConfigError(f"{file}: activation function {activation} is not supported")
    return means[name]


class _TokenizerFile(msgspec.Struct):
    """The key of tokenizer_config.json with the length to which texts are truncated."""

    model_max_length: float | None = None


class _Matryoshka(msgspec.Struct):
    """The keys of config.json with the sizes to which an embedder's vectors may be truncated."""

    is_matryoshka: bool | None = None
    matryoshka_dimensions: list[Annotated[int, Meta(ge=1)]] | None = None


def _embedding_config(file: Path, raw: dict[str, Any], model: ModelFile) -> EmbeddingConfig:
    try:
        matryoshka = msgspec.convert(raw, _Matryoshka)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{file} is not valid: {error}") from None
    sizes = sorted(set(matryoshka.matryoshka_dimensions or ()))
    if sizes and sizes[-1] > (largest := int(raw["hidden_size"])):
        message = f"matryoshka_dimensions: {sizes[-1]} is more than {largest}, the hidden size"
        raise ModelConfigError(f"{file}: {message}")
    return EmbeddingConfig(
        prompts={name: prompt or "" for name, prompt in (model.prompts or {}).items()},
        default_prompt_name=model.default_prompt_name,
        similarity=model.similarity_fn_name or "cosine",
        is_matryoshka=bool(sizes) or matryoshka.is_matryoshka is True,
        matryoshka_dimensions=tuple(sizes),
    )
