"""Mistral (Jiang et al. 2023, arXiv:2310.06825): a Llama whose layers attend within a window."""

from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import narrowed, read_causal, read_window
from workers.contract.families.base import decoder, shape_of
from workers.contract.model_shape import DecoderConfig, ModelShape


def read_mistral(keys: ConfigKeys) -> ModelShape:
    """As `MistralConfig` of transformers. Raises ModelConfigError."""
    sizes = read_sizes(keys)
    everything = read_causal(keys, sizes)
    narrow = narrowed(everything, read_window(keys, 4096), sizes.max_position)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
    )
    return shape_of(keys, sizes, [narrow] * sizes.num_layers, family, tied=False)


MISTRAL = decoder("Mistral", read_mistral)
