"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): a BERT without segments, whose keys, tensors and
heads have other names."""

from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.sizes import read_activation
from workers.contract.families.base import encoder
from workers.contract.families.bert import encoder_shape
from workers.contract.model_shape import EncoderConfig, ModelShape

_SPELLING = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}


def read_distilbert(keys: ConfigKeys) -> ModelShape:
    """As `DistilBertConfig` of transformers. Raises ModelConfigError."""
    keys.spell(_SPELLING)
    # A table of sines is among the tensors as a learned one is.
    keys.ignore("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")
    activation = read_activation(keys, "activation", "gelu")
    family = EncoderConfig(
        hidden_act=activation,
        head_act=activation,
        pooler_act="relu",
        norm_eps=1e-12,
        type_vocab_size=0,
    )
    return encoder_shape(keys, family)


DISTILBERT = encoder(
    "DistilBert",
    read_distilbert,
    (
        (r"^distilbert\.", ""),
        (r"^transformer\.layer\.", "encoder.layer."),
        (r"\.attention\.q_lin\.", ".attention.self.query."),
        (r"\.attention\.k_lin\.", ".attention.self.key."),
        (r"\.attention\.v_lin\.", ".attention.self.value."),
        (r"\.attention\.out_lin\.", ".attention.output.dense."),
        (r"\.sa_layer_norm\.", ".attention.output.LayerNorm."),
        (r"\.ffn\.lin1\.", ".intermediate.dense."),
        (r"\.ffn\.lin2\.", ".output.dense."),
        (r"\.output_layer_norm\.", ".output.LayerNorm."),
        (r"^pre_classifier\.", "pooler.dense."),
        (r"^vocab_transform\.", "cls.predictions.transform.dense."),
        (r"^vocab_layer_norm\.", "cls.predictions.transform.LayerNorm."),
        (r"^vocab_projector\.", "cls.predictions.decoder."),
    ),
)
