"""NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): a BERT with rotary positions and a gated
feed-forward network, without biases."""

from collections.abc import Mapping

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.bookkeeping import Neutral
from workers.contract.config_keys.keys import MOST_WIDTH, ConfigKeys
from workers.contract.config_keys.rope import read_rope
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.families.base import encoder, shape_of
from workers.contract.model_shape import ActivationName, EncoderConfig, ModelShape

_SPELLING = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "rope_theta": "rotary_emb_base",
}
_NEUTRAL: Neutral = {
    "num_experts": (0, None),
    "moe_every_n_layers": (-1, 0, None),
    "num_shared_experts": (0, None),
    "causal": (False, None),
    "mlp_fc1_bias": (False, None),
    "mlp_fc2_bias": (False, None),
    "norm_mlp": (False, None),
    "parallel_block": (False, None),
    "parallel_block_tied_norm": (False, None),
    "prenorm": (False, None),
    "qkv_proj_bias": (False, None),
    "rotary_emb_fraction": (1, None),
    "rotary_emb_interleaved": (False, None),
    "rotary_emb_scale_base": (None,),
    "rotary_head_dim": (False, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "scale_attn_weights": (True, None),
    "use_rms_norm": (False, None),
}
_NOT_READ = (
    *("attn_pdrop", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln"),
    *("pad_vocab_size_multiple", "reorder_and_upcast_attn", "summary_activation"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "use_xentropy"),
    *("expert_choice_router", "ffn_div", "moe_impl", "moe_normalize_expert_weights"),
    *("moe_resid_pdrop", "moe_top_k", "add_pooling_layer"),
)
"""Of training and of how it was computed; of the mixture of experts, which is refused."""
_GATED: Mapping[str, ActivationName] = {"swiglu": "silu", "geglu": "gelu"}
"""The activation of the gate, by `activation_function`."""


def read_nomicbert(keys: ConfigKeys) -> ModelShape:
    """As `NomicBertConfig` of transformers, or as that of the code that the first checkpoints came
    with, whose keys are those of GPT-2. Raises ModelConfigError."""
    keys.spell(_SPELLING)
    keys.neutral(_NEUTRAL)
    keys.ignore(*_NOT_READ)
    sizes = read_sizes(keys, positions=_key_of_length(keys))
    rope = read_rope(keys, sizes.max_position, theta=1000.0)
    hidden_act = read_activation(keys, "hidden_act")
    if keys.optional("activation_function", str):
        hidden_act = keys.choice("activation_function", _GATED)
    everything = AttentionKind(causal=False, scale=sizes.head_dim**-0.5, rope=rope)
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=hidden_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=keys.count("type_vocab_size", 2, MOST_WIDTH),
        gated=True,
        bias=False,
        fused_qkv=True,
    )
    return shape_of(keys, sizes, [everything] * sizes.num_layers, family, tied=True)


def _key_of_length(keys: ConfigKeys) -> str:
    """The key that says how long a text may be.

    With `rotary_scaling_factor`, texts longer than those of the training would be rotated by bases
    of their own (dynamic NTK), so the length of the training is the most.
    """
    longest = "n_positions" if keys.has("n_positions") else "max_position_embeddings"
    scaled = keys.optional("rotary_scaling_factor", float)
    keys.ignore("max_position_embeddings", "max_trained_positions", "n_positions")
    return "max_trained_positions" if scaled else longest


NOMICBERT = encoder(
    "NomicBert",
    read_nomicbert,
    (
        (r"^(nomic_)?bert\.", ""),
        (r"^emb_ln\.", "embeddings.LayerNorm."),
        (r"^encoder\.layers\.", "encoder.layer."),
        (r"\.attn\.Wqkv\.", ".attention.self.qkv."),
        (r"\.attn\.out_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc11\.", ".intermediate.dense."),
        (r"\.mlp\.fc12\.", ".intermediate.gate."),
        (r"\.mlp\.fc2\.", ".output.dense."),
        (r"\.norm1\.", ".attention.output.LayerNorm."),
        (r"\.norm2\.", ".output.LayerNorm."),
        (r"\.transform\.layer_norm\.", ".transform.LayerNorm."),
        (r"^cls\.predictions\.bias$", "cls.predictions.decoder.bias"),
    ),
    known_code=("modeling_hf_nomic_bert",),
)
