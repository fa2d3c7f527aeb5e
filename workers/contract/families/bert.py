"""BERT (Devlin et al. 2018, arXiv:1810.04805)."""

import msgspec

from workers.contract.attention_kind import AttentionKind, PositionBias
from workers.contract.config_keys.keys import MOST_WIDTH, ConfigKeys
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.families.base import encoder, shape_of
from workers.contract.model_shape import ActivationName, EncoderConfig, ModelShape

_ORIGINAL_POOLER = (
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
"""What the original code wrote for multilingual models; transformers reads none of them."""


def read_bert(keys: ConfigKeys) -> ModelShape:
    """As `BertConfig` of transformers. Raises ModelConfigError."""
    keys.neutral({"directionality": ("bidi", None)})
    keys.ignore(*_ORIGINAL_POOLER)
    return read_encoder(keys)


def read_encoder(
    keys: ConfigKeys, *, first_position: int = 0, head_act: ActivationName | None = None
) -> ModelShape:
    """An encoder with the keys of BERT. Raises ModelConfigError."""
    keys.neutral({"position_embedding_type": ("absolute", None)})
    hidden_act = read_activation(keys, "hidden_act", "gelu")
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=head_act or hidden_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=keys.count("type_vocab_size", 2, MOST_WIDTH),
        first_position=first_position,
    )
    return encoder_shape(keys, family)


def encoder_shape(
    keys: ConfigKeys, family: EncoderConfig, position_bias: PositionBias | None = None
) -> ModelShape:
    """The shape of an encoder; sizes have their usual names. Raises ModelConfigError."""
    sizes, unused = read_sizes(keys), family.first_position
    if sizes.max_position <= unused:
        raise keys.error(f"{sizes.max_position} positions, of which {unused} are not used")
    sizes = msgspec.structs.replace(sizes, max_position=sizes.max_position - unused)
    kind = AttentionKind(causal=False, scale=sizes.head_dim**-0.5, position_bias=position_bias)
    return shape_of(keys, sizes, [kind] * sizes.num_layers, family, tied=True)


BERT = encoder(
    "Bert",
    read_bert,
    (
        (r"^bert\.", ""),
        (r"\.gamma$", ".weight"),  # norms in old checkpoints
        (r"\.beta$", ".bias"),
        (r"^cls\.predictions\.bias$", "cls.predictions.decoder.bias"),  # two names of one tensor
    ),
)
