"""Reads sentence-transformers' modules behind a model, each from `config.json` in its own folder.

Pooling, Dense, LayerNorm and Normalize turn an embedder's token states into vectors; SpladePooling
and the LogitScore of a causal model that scores pairs stand alone.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.folder_files import decoded, optional, read_json
from workers.contract.checkpoint.sentence_transformers_files import ModelFile, Module, module_of
from workers.contract.config_keys.bookkeeping import Neutral
from workers.contract.config_keys.keys import MOST_WIDTH, ConfigKeys
from workers.contract.embedding_modules import (
    DenseActivation,
    DenseConfig,
    LayerNormConfig,
    NormalizeConfig,
    PoolingConfig,
    PoolingMode,
    VectorModule,
)
from workers.contract.model_config import ModelConfigError, SpladeConfig
from workers.contract.reranking import RerankConfig

_Size = Annotated[int, Meta(ge=1, le=MOST_WIDTH)]
_TokenId = Annotated[int, Meta(ge=0)]
ModuleT = TypeVar("ModuleT")

_OF_VECTORS: Neutral = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding", None),
    "use_residual": (False,),
}


class _Pooling(msgspec.Struct, forbid_unknown_fields=True):
    """Before version 5.4 the library wrote one key for each mode; they are in the order in which it
    puts their vectors side by side."""

    pooling_mode: PoolingMode | Annotated[list[PoolingMode], Meta(min_length=1)] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    embedding_dimension: int | None = None
    word_embedding_dimension: int | None = None
    include_prompt: bool = True

    def modes(self) -> tuple[PoolingMode, ...]:
        """The mean, if none is named."""
        if self.pooling_mode is not None:
            named = self.pooling_mode
            return (named,) if isinstance(named, str) else tuple(named)
        flags: dict[PoolingMode, bool] = {
            "cls": self.pooling_mode_cls_token,
            "max": self.pooling_mode_max_tokens,
            "mean": self.pooling_mode_mean_tokens,
            "mean_sqrt_len_tokens": self.pooling_mode_mean_sqrt_len_tokens,
            "weightedmean": self.pooling_mode_weightedmean_tokens,
            "lasttoken": self.pooling_mode_lasttoken,
        }
        return tuple(mode for mode, chosen in flags.items() if chosen) or ("mean",)


class _Dense(msgspec.Struct, forbid_unknown_fields=True):
    in_features: _Size
    out_features: _Size
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


class _LayerNorm(msgspec.Struct, forbid_unknown_fields=True):
    dimension: _Size


class _LogitScore(msgspec.Struct, forbid_unknown_fields=True):
    """The module's configuration."""

    true_token_id: _TokenId
    false_token_id: _TokenId | None = None
    module_input_name: Literal["causal_logits"] = "causal_logits"


def read_pooling(folder: Path, modules: Sequence[Module], hidden_size: int) -> PoolingConfig:
    """The Pooling module, or the library's default without one. Raises ModelConfigError."""
    module = module_of(modules, "Pooling")
    if module is None:
        return PoolingConfig()
    own = decoded(folder, module.config_file, _Pooling)
    for key in ("embedding_dimension", "word_embedding_dimension"):
        size: int | None = getattr(own, key)
        if size not in (None, hidden_size):
            raise ModelConfigError(
                f"{folder / module.config_file}: {key} {size} does not fit the model's hidden "
                f"size, {hidden_size}"
            )
    return PoolingConfig(modes=own.modes(), include_prompt=own.include_prompt)


def read_splade(folder: Path, modules: Sequence[Module]) -> SpladeConfig:
    """The SpladePooling module, or its defaults if there is none. Raises ModelConfigError."""
    module = module_of(modules, "SpladePooling")
    return SpladeConfig() if module is None else decoded(folder, module.config_file, SpladeConfig)


def read_reranking(folder: Path, modules: Sequence[Module], file: ModelFile) -> RerankConfig:
    """What the checkpoint itself says of its scores, which may be nothing; the template is not
    among it. Its default prompt is its default instruction. Raises ModelConfigError."""
    instruction = file.default_prompt or None
    module = module_of(modules, "LogitScore")
    if module is None:
        return RerankConfig(instruction=instruction)
    raw = decoded(folder, module.config_file, _LogitScore)
    ids = (raw.true_token_id, raw.false_token_id)
    own = tuple(token for token in ids if token is not None)
    return RerankConfig(token_ids=own, instruction=instruction)


def read_vector_modules(
    folder: Path, modules: Sequence[Module], pooled_size: int
) -> tuple[VectorModule, ...]:
    """What follows the pooling, whose vectors have `pooled_size` numbers. Raises
    ModelConfigError."""
    size, read = pooled_size, list[VectorModule]()
    for module in _behind_pooling(folder, modules):
        match module.kind:
            case "Dense":
                dense = _dense(folder, module, size)
                size = dense.out_features
                read.append(dense)
            case "LayerNorm":
                read.append(_layer_norm(folder, module, size))
            case "Normalize":
                raw = optional(folder, module.config_file, dict[str, Any]) or {}
                _without_renamed(folder / module.config_file, raw)
                read.append(NormalizeConfig())
            case _:  # Dropout, which does nothing outside training
                pass
    return tuple(read)


def _behind_pooling(folder: Path, modules: Sequence[Module]) -> Iterator[Module]:
    kinds = [module.kind for module in modules]
    start = kinds.index("Pooling") + 1 if "Pooling" in kinds else len(kinds)
    taken = set[str]()
    for module in modules[start:]:
        if module.kind in ("Dense", "LayerNorm"):
            if module.path in taken:
                file = folder / "modules.json"
                raise ModelConfigError(f"{file}: two modules are in the folder {module.path!r}")
            taken.add(module.path)
        yield module


def _dense(folder: Path, module: Module, size: int) -> DenseConfig:
    file = folder / module.config_file
    raw = read_json(folder, module.config_file)
    own = _converted(file, _without_renamed(file, raw), _Dense)
    if own.in_features != size:
        raise ModelConfigError(
            f"{file}: in_features {own.in_features} does not fit the vectors before it, "
            f"which have {size} numbers"
        )
    return DenseConfig(
        path=module.path,
        in_features=own.in_features,
        out_features=own.out_features,
        bias=own.bias,
        activation=_activation(file, own.activation_function),
    )


def _layer_norm(folder: Path, module: Module, size: int) -> LayerNormConfig:
    file, own = folder / module.config_file, decoded(folder, module.config_file, _LayerNorm)
    if own.dimension != size:
        raise ModelConfigError(
            f"{file}: dimension {own.dimension} does not fit the vectors before it, "
            f"which have {size} numbers"
        )
    return LayerNormConfig(path=module.path, size=size)


def _without_renamed(file: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The other keys of a module that must read and write vectors under their usual name."""
    ConfigKeys(file, raw).neutral(_OF_VECTORS)
    return {key: value for key, value in raw.items() if key not in _OF_VECTORS}


def _activation(file: Path, name: str) -> DenseActivation:
    """The class of torch that `name` is the path of."""
    module, _, own = name.rpartition(".")
    known: tuple[DenseActivation, ...] = get_args(DenseActivation)
    for activation in known:
        if activation == own and f"{module}.".startswith("torch.nn."):
            return activation
    raise ModelConfigError(
        f"{file}: activation_function {name} is not supported (torch.nn's {', '.join(known)})"
    )


def _converted(file: Path, raw: dict[str, Any], kind: type[ModuleT]) -> ModuleT:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{file} is not valid: {error}") from None
