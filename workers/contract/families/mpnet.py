"""MPNet (Song et al. 2020, arXiv:2004.09297): a RoBERTa without segments, whose layers share a bias
of scores by distance."""

from workers.contract.attention_kind import PositionBias
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.sizes import read_activation
from workers.contract.families.base import encoder
from workers.contract.families.bert import encoder_shape
from workers.contract.families.roberta import HEAD_RENAMES
from workers.contract.model_shape import EncoderConfig, ModelShape

_BIAS = PositionBias(num_buckets=32, max_distance=128)
"""transformers computes buckets by these numbers whatever `config.json` says."""


def read_mpnet(keys: ConfigKeys) -> ModelShape:
    """As `MPNetConfig` of transformers. Raises ModelConfigError."""
    keys.neutral({"relative_attention_num_buckets": (_BIAS.num_buckets, None)})
    family = EncoderConfig(
        hidden_act=read_activation(keys, "hidden_act", "gelu"),
        head_act="gelu",
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=0,
        first_position=2,
    )
    return encoder_shape(keys, family, _BIAS)


MPNET = encoder(
    "MPNet",
    read_mpnet,
    (
        (r"^mpnet\.", ""),
        (r"\.attention\.attn\.q\.", ".attention.self.query."),
        (r"\.attention\.attn\.k\.", ".attention.self.key."),
        (r"\.attention\.attn\.v\.", ".attention.self.value."),
        (r"\.attention\.attn\.o\.", ".attention.output.dense."),
        (r"\.attention\.LayerNorm\.", ".attention.output.LayerNorm."),
        *HEAD_RENAMES,
    ),
)
