"""Reads the rotary position embedding of a model from `config.json`."""

from typing import Any

from workers.contract.config_keys.keys import MOST_TOKENS, ConfigKeys
from workers.contract.rope_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    long_attention_factor,
    yarn_attention_factor,
)

_TYPES = "default, linear, llama3, yarn, longrope, dynamic"


def read_rope(keys: ConfigKeys, max_position: int, theta: float = 10_000.0) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`.

    `max_position` is the length that the model declares, `theta` what its class in transformers
    takes if `config.json` names none. Raises ModelConfigError.
    """
    theta = keys.read("rope_theta", float, theta)
    original = keys.optional_size("original_max_position_embeddings")
    return rope_of(rope_keys(keys), theta, original, max_position)


def rope_keys(keys: ConfigKeys) -> ConfigKeys:
    """The object in which `config.json` describes the embedding; empty if it has none."""
    names = ("rope_scaling", "rope_parameters")
    given = [name for name in names if keys.optional(name, dict[str, Any])]
    return keys.nested(given[0] if given else names[1])


def rope_of(keys: ConfigKeys, theta: float, original: int | None, max_position: int) -> RopeConfig:
    """The embedding that one object of `config.json` describes, with what is declared beside it.

    Raises ModelConfigError, also for a type of scaling that is not supported.
    """
    keys.neutral({"partial_rotary_factor": (1, None)})
    kind = keys.read("rope_type", str, keys.read("type", str, "default"))
    return RopeConfig(
        theta=keys.read("rope_theta", float, theta),
        scaling=read_scaling(keys, kind, original, max_position),
    )


def read_scaling(
    keys: ConfigKeys, kind: str, original: int | None, max_position: int
) -> RopeScaling | None:
    """The scaling of type `kind` that one object describes. `original` is the length before it, if
    that is declared outside of the object; there it has precedence. Raises ModelConfigError."""
    inner = keys.optional_size("original_max_position_embeddings")
    original = original or inner or max_position
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=keys.required("factor", float))
        case "llama3":
            return Llama3Scaling(
                factor=keys.required("factor", float),
                low_freq_factor=keys.required("low_freq_factor", float),
                high_freq_factor=keys.required("high_freq_factor", float),
                original_max_position=original,
            )
        case "yarn":
            return _yarn(keys, original)
        case "longrope":
            return _longrope(keys, original, max_position)
        case "dynamic":
            keys.ignore("factor")
            return DynamicScaling(original_max_position=original)
        case _:
            raise keys.error(f"rope type {kind!r} is not supported ({_TYPES})")


def _yarn(keys: ConfigKeys, original: int) -> YarnScaling:
    factor = keys.required("factor", float)
    mscales = keys.optional("mscale", float), keys.optional("mscale_all_dim", float)
    own = keys.optional("attention_factor", float)
    if factor * original > MOST_TOKENS:
        raise keys.error(f"rope type 'yarn' makes of {original} tokens more than {MOST_TOKENS}")
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        beta_fast=keys.optional("beta_fast", float) or 32.0,
        beta_slow=keys.optional("beta_slow", float) or 1.0,
        truncate=keys.read("truncate", bool, True),
        attention_factor=yarn_attention_factor(factor, *mscales) if own is None else own,
    )


def _longrope(keys: ConfigKeys, original: int, max_position: int) -> LongScaling:
    factor = keys.read("factor", float, max_position / original)
    own = keys.optional("attention_factor", float)
    if own is None and original == 1:  # whose logarithm is 0
        raise keys.error("rope type 'longrope' for texts of 1 token has no attention factor")
    return LongScaling(
        short_factors=tuple(keys.required("short_factor", list[float])),
        long_factors=tuple(keys.required("long_factor", list[float])),
        original_max_position=original,
        attention_factor=long_attention_factor(factor, original) if own is None else own,
    )
