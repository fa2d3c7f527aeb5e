"""A family: architectures that share a reader of `config.json` and a stage model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from workers.contract.checkpoint.config_keys import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, ConfigKeys
from workers.contract.config import Task
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    DynamicScaling,
    FamilyConfig,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ModelShape,
    RopeConfig,
    RopeScaling,
    Sizes,
    YarnScaling,
    long_attention_factor,
    yarn_attention_factor,
)

ReadShape = Callable[[ConfigKeys], ModelShape]
Renames = Sequence[tuple[str, str]]
"""Regular expressions and what replaces each, in order: from the names of a family's tensors to
those that its stage model uses."""


_PREFIX = (r"^(embed_tokens|layers|norm)\.", r"model.\1.")
"""A decoder that was saved without its LM head has names without "model."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture, as a row of the table (`workers/contract/checkpoint/architectures.py`).

    name         the family's, which its architectures begin with
    task         decides the workflow (`engine_core.workflows`)
    model_class  `module:class`, a `StageModel`; only workers import it
    read_shape   reads the family's keys of `config.json`
    renames      see `Renames`
    base         the architecture that a checkpoint with this one has if its states are pooled
    known_code   modules of checkpoints' own code (`auto_map`) that compute what the family does
    """

    name: str
    task: Task
    model_class: str
    read_shape: ReadShape
    renames: Renames
    base: str
    known_code: tuple[str, ...] = ()

    def canonical_name(self, name: str) -> str:
        """A checkpoint's own name for a tensor -> the name that the stage model uses."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


def decoder(
    name: str, read_shape: ReadShape, renames: Renames = (), alone: str | None = None
) -> dict[str, Family]:
    """The architectures of decoder `name`: with an LM head, as a classifier, and alone, called
    `alone` if not as is usual."""
    base, module = alone or f"{name}Model", "workers.models.decoder:Decoder"
    own: dict[str, tuple[str, Task]] = {
        f"{name}ForCausalLM": ("ForCausalLM", "generate"),
        f"{name}ForSequenceClassification": ("ForSequenceClassification", "classify"),
        base: ("Model", "embed"),
    }
    return {
        architecture: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=(_PREFIX, *renames),
            base=base,
        )
        for architecture, (head, task) in own.items()
    }


def encoder(
    name: str,
    read_shape: ReadShape,
    renames: Renames = (),
    module: str = "workers.models.encoder:Encoder",
    known_code: tuple[str, ...] = (),
) -> dict[str, Family]:
    """The architectures of encoder `name`: alone, as a masked language model, as a classifier."""
    tasks: dict[str, Task] = {
        "Model": "embed",
        "ForMaskedLM": "embed_sparse",
        "ForSequenceClassification": "classify",
    }
    return {
        name + head: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=renames,
            base=f"{name}Model",
            known_code=known_code,
        )
        for head, task in tasks.items()
    }


def shape_of(
    keys: ConfigKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    family: FamilyConfig,
    *,
    tied: bool,
) -> ModelShape:
    """The shape of a model whose layers have the kinds of attention `layers`. `tied` says whether
    the LM head is the embedding if `config.json` does not. Raises ModelConfigError."""
    kinds = tuple(dict.fromkeys(layers))
    return ModelShape(
        **msgspec.structs.asdict(sizes),
        tie_word_embeddings=keys.read("tie_word_embeddings", bool, tied),
        attention=kinds,
        layer_kinds=tuple(kinds.index(kind) for kind in layers),
        family=family,
    )


def read_sizes(
    keys: ConfigKeys, head_dim: int | None = None, positions: str = "max_position_embeddings"
) -> Sizes:
    """The sizes, by their usual names (see `ConfigKeys.spell`). Without a key `head_dim` that size
    is the argument's, or follows from the hidden size. Key `positions` says how many positions
    there are. Raises ModelConfigError."""
    hidden = keys.size("hidden_size", MOST_WIDTH)
    heads = keys.size("num_attention_heads", MOST_WIDTH)
    kv_heads = keys.optional_size("num_key_value_heads") or heads
    if keys.has("head_dim"):
        head_dim = keys.optional_size("head_dim", MOST_WIDTH)
    if head_dim is None and hidden % heads:
        raise keys.error(f"hidden_size {hidden} is not divisible by {heads} attention heads")
    if heads % kv_heads:
        raise keys.error(f"{heads} attention heads are not divisible by {kv_heads} key/value heads")
    return Sizes(
        vocab_size=keys.size("vocab_size", MOST_TOKENS),
        hidden_size=hidden,
        intermediate_size=keys.size("intermediate_size", MOST_WIDTH),
        num_layers=keys.size("num_hidden_layers", MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        max_position=keys.size(positions, MOST_TOKENS),
    )


def read_activation(
    keys: ConfigKeys, name: str, default: ActivationName = "silu"
) -> ActivationName:
    """The activation function that key `name` names. Raises ModelConfigError, with those that are
    known."""
    known: tuple[ActivationName, ...] = get_args(ActivationName)
    return keys.choice(name, dict(zip(known, known, strict=True)), default)


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


FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
"""The types of layers in `layer_types`."""


def read_causal(keys: ConfigKeys, sizes: Sizes) -> AttentionKind:
    """Attention of rotated queries and keys to all tokens before. Raises ModelConfigError."""
    rope = read_rope(keys, sizes.max_position)
    return AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)


def read_window(keys: ConfigKeys, default: int | None) -> int | None:
    """`sliding_window` in tokens: `default` if `config.json` has no such key, none where it is
    null. Raises ModelConfigError for a window without tokens."""
    return keys.optional_size("sliding_window") if keys.has("sliding_window") else default


def narrowed(kind: AttentionKind, window: int | None, max_position: int) -> AttentionKind:
    """`kind` with a window, in a model that declares `max_position` positions. A window that holds
    every text is none: transformers' masks are the same with it and without."""
    longest = max_position if kind.rope is None else kind.rope.limit(max_position)
    holds_all = window is not None and window >= longest
    return msgspec.structs.replace(kind, window=None if holds_all else window)


def read_layers(
    keys: ConfigKeys, kinds: Mapping[str, AttentionKind], default: Sequence[AttentionKind]
) -> Sequence[AttentionKind]:
    """The kind of attention of each layer, by its type in `layer_types`; without the key the
    `default`.

    Raises ModelConfigError for another type, or unless there is one for each layer.
    """
    names = keys.optional("layer_types", list[str])
    if names is None:
        return default
    if len(names) != len(default):
        raise keys.error(f"layer_types has {len(names)} entries for {len(default)} layers")
    for name in names:
        if name not in kinds:
            raise keys.error(f"layer_types has {name!r}, which is not supported here")
    return [kinds[name] for name in names]
