"""Reads the rotary position embedding of a model from `config.json`."""

from typing import Any

from workers.contract.attention_kind import RopeConfig
from workers.contract.config_keys.keys import ConfigKeys


def read_rope(keys: ConfigKeys, max_position: int, theta: float = 10_000.0) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`.

    `max_position` is the length that the model declares, `theta` what its class in transformers
    takes if `config.json` names none. Raises ModelConfigError.
    """
    names = ("rope_scaling", "rope_parameters")
    given = [name for name in names if keys.optional(name, dict[str, Any])]
    theta = keys.read("rope_theta", float, theta)
    original = keys.optional_size("original_max_position_embeddings")
    return rope_of(keys.nested(given[0] if given else names[1]), theta, original, max_position)


def rope_of(keys: ConfigKeys, theta: float, original: int | None, max_position: int) -> RopeConfig:
    """The embedding that one object of `config.json` describes, with what is declared beside it.

    Raises ModelConfigError, also for a type of scaling that is not supported.
    """
    keys.neutral({"partial_rotary_factor": (1, None)})
    theta = keys.read("rope_theta", float, theta)
    inner = keys.optional_size("original_max_position_embeddings")
    kind = keys.read("rope_type", str, keys.read("type", str, "default"))
    match kind:
        case "default":
            return RopeConfig(theta=theta)
        case "linear":
            return RopeConfig(theta=theta, type="linear", factor=keys.required("factor", float))
        case "llama3":
            return RopeConfig(
                theta=theta,
                type="llama3",
                factor=keys.required("factor", float),
                low_freq_factor=keys.required("low_freq_factor", float),
                high_freq_factor=keys.required("high_freq_factor", float),
                original_max_position=original or inner or max_position,
            )
        case _:
            raise keys.error(f"rope type {kind!r} is not supported (default, linear, llama3)")
