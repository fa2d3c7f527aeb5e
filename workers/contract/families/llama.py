"""Llama (Touvron et al. 2023, arXiv:2302.13971), with grouped queries and scaled positions."""

from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import FULL_ATTENTION, read_causal, read_layers
from workers.contract.families.base import decoder, shape_of
from workers.contract.model_shape import DecoderConfig, ModelShape


def read_llama(keys: ConfigKeys) -> ModelShape:
    """As `LlamaConfig` of transformers. Raises ModelConfigError."""
    keys.neutral(
        {
            "is_causal": (True, None),
            "llama_4_scaling": (None,),
            "logit_scale": (1, None),
            "partial_rotary_factor": (1, None),
            "rope_interleaved": (False, None),
            "sliding_window": (None,),
            "use_bidirectional_attention": (False, None),
        }
    )
    keys.ignore("is_llama_config", "max_sequence_length")
    sizes, bias = read_sizes(keys), keys.read("attention_bias", bool, False)
    everything = read_causal(keys, sizes)
    layers = read_layers(keys, {FULL_ATTENTION: everything}, [everything] * sizes.num_layers)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=keys.read("mlp_bias", bool, False),
    )
    return shape_of(keys, sizes, layers, family, tied=False)


LLAMA = decoder("Llama", read_llama)
