"""What most families read of `config.json` in the same way."""

from typing import get_args

from workers.contract.config_keys.keys import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, ConfigKeys
from workers.contract.model_shape import ActivationName, Sizes


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
