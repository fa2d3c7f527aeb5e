"""Reads what `config.json` says of an encoder, by family, and how its checkpoints call tensors.

Each reader obeys a class of transformers and raises ModelConfigError. The first is BERT's
(arXiv:1810.04805); the others differ from it:

- RoBERTa (arXiv:1907.11692) and the models of its shape, XLM-RoBERTa (arXiv:1911.02116) and
  CamemBERT (arXiv:1911.03894): positions begin after that of the padding token, and heads have
  other names.
- MPNet (arXiv:2004.09297): as RoBERTa, but no segments, and layers share a bias by distance.
- DistilBERT (arXiv:1910.01108): no segments, and other names of keys, tensors and heads.
- ELECTRA (arXiv:2003.10555): embeddings may be narrower than the layers.
- ALBERT (arXiv:1909.11942): likewise, and all layers are one.
- GTE (arXiv:2407.19669), whose own code calls it "New": rotary positions, and a gated feed-forward
  network.
- Jina embeddings 2 (arXiv:2310.19923): scores fall with the distance (ALiBi), and a gated
  feed-forward network.
- DeBERTa 2 and 3 (arXiv:2006.03654, arXiv:2111.09543): scores also depend on the distance of the
  two tokens by what these are.
- NomicBERT (arXiv:2402.01613): rotary positions, a gated feed-forward network, no biases.
- ModernBERT (arXiv:2412.13663): blocks normalise their input, and some layers attend within a
  window.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import MOST_TOKENS, MOST_WIDTH, each, shown_value
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    DisentangledBias,
    EncoderConfig,
    LinearBias,
    LinearScaling,
    ModelShape,
    PoolingMode,
    PositionBias,
    PreNormEncoderConfig,
    RopeConfig,
    Sizes,
)

Renames = Sequence[tuple[str, str]]
"""(regular expression, replacement), applied in order to a family's names of tensors. The results
are the names that its stage model uses."""


def _read_sizes(keys: ShapeKeys, positions: str = "max_position_embeddings") -> Sizes:
    """The sizes of an encoder, whose heads share the hidden size and have a key and value each."""
    sizes = keys.read_sizes(positions)
    shared = sizes.hidden_size / sizes.num_heads
    keys.neutral({"head_dim": (shared, None), "num_key_value_heads": (sizes.num_heads, None)})
    return sizes


def read_bert(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"directionality": ("bidi", None), "position_embedding_type": ("absolute", None)})
    # The original code wrote these for multilingual models; transformers reads none of them.
    keys.ignore("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
    keys.ignore("pooler_size_per_head", "pooler_type")
    return _read_encoder(keys)


BERT_NAMES = (
    (r"^bert\.", ""),
    (r"\.gamma$", ".weight"),  # norms in old checkpoints
    (r"\.beta$", ".bias"),
    (r"^cls\.predictions\.bias$", "cls.predictions.decoder.bias"),  # two names of one tensor
)


def read_roberta(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"position_embedding_type": ("absolute", None)})
    first = keys.read("pad_token_id", int, 1) + 1
    return _read_encoder(keys, first_position=first, head_act="gelu")


_ROBERTA_HEADS = (
    (r"^pooler\.", "unused_pooler."),  # the classifier's first layer is in its place
    (r"^classifier\.dense\.", "pooler.dense."),
    (r"^classifier\.out_proj\.", "classifier."),
    (r"^lm_head\.(dense|layer_norm)\.", r"cls.predictions.transform.\1."),
    (r"\.transform\.layer_norm\.", ".transform.LayerNorm."),
    (r"^lm_head\.(decoder\.)?(weight|bias)$", r"cls.predictions.decoder.\2"),
)
ROBERTA_NAMES = (
    (r"^roberta\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    *_ROBERTA_HEADS,
)

_MPNET_BIAS = PositionBias(num_buckets=32, max_distance=128)
"""transformers computes buckets by these numbers whatever `config.json` says."""


def read_mpnet(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"relative_attention_num_buckets": (_MPNET_BIAS.num_buckets, None)})
    return _read_encoder(
        keys, first_position=2, head_act="gelu", segments=False, position_bias=_MPNET_BIAS
    )


MPNET_NAMES = (
    (r"^mpnet\.", ""),
    (r"\.attention\.attn\.q\.", ".attention.self.query."),
    (r"\.attention\.attn\.k\.", ".attention.self.key."),
    (r"\.attention\.attn\.v\.", ".attention.self.value."),
    (r"\.attention\.attn\.o\.", ".attention.output.dense."),
    (r"\.attention\.LayerNorm\.", ".attention.output.LayerNorm."),
    *_ROBERTA_HEADS,
)


def read_distilbert(keys: ShapeKeys) -> ModelShape:
    keys.spell(
        {
            "hidden_size": "dim",
            "intermediate_size": "hidden_dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        }
    )
    # A table of sines is among the tensors as a learned one is.
    keys.ignore("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")
    activation = keys.read_activation("activation", "gelu")
    family = EncoderConfig(
        hidden_act=activation,
        head_act=activation,
        pooler_act="relu",
        norm_eps=1e-12,
        type_vocab_size=0,
    )
    return _encoder_shape(keys, family)


DISTILBERT_NAMES = (
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
)


def read_electra(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"position_embedding_type": ("absolute", None)})
    keys.ignore("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")
    own, wide = _embedding_size(keys), keys.size("hidden_size", MOST_WIDTH)
    size = None if own == wide else own
    return _read_encoder(keys, head_act="gelu", pooler_act="gelu", embedding_size=size)


ELECTRA_NAMES = (
    (r"^electra\.", ""),
    (r"^discriminator_predictions\.", "unused_pooler."),
    (r"^generator_predictions\.", "cls.predictions.transform."),
    (r"^generator_lm_head\.", "cls.predictions.decoder."),
    (r"^classifier\.dense\.", "pooler.dense."),
    (r"^classifier\.out_proj\.", "classifier."),
)


def read_albert(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        {"position_embedding_type": ("absolute", None)}
        | each("inner_group_num num_hidden_groups", 1, None)
    )
    keys.ignore("classifier_dropout_prob")
    # The original code's own, which transformers does not read.
    keys.ignore("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    return _read_encoder(
        keys, usual_act="gelu_new", embedding_size=_embedding_size(keys), shared_layers=True
    )


def _embedding_size(keys: ShapeKeys) -> int:
    return keys.size("embedding_size", MOST_WIDTH, default=128)


ALBERT_NAMES = (
    (r"^albert\.", ""),
    (r"^encoder\.embedding_hidden_mapping_in\.", "embeddings_project."),
    (r"^encoder\.albert_layer_groups\.0\.albert_layers\.0\.", "encoder.layer.0."),
    (r"\.attention\.(query|key|value)\.", r".attention.self.\1."),
    (r"\.attention\.(dense|LayerNorm)\.", r".attention.output.\1."),
    (r"\.ffn\.", ".intermediate.dense."),
    (r"\.ffn_output\.", ".output.dense."),
    (r"\.full_layer_layer_norm\.", ".output.LayerNorm."),
    (r"^pooler\.", "pooler.dense."),
    (r"^sop_classifier\.", "unused_pooler."),
    (r"^predictions\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
    (r"^predictions\.(decoder\.)?", "cls.predictions.decoder."),
)


def read_gte(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("logn_attention_clip1 logn_attention_scale", False, None)
        | {"layer_norm_type": ("layer_norm", None), "position_embedding_type": ("rope", None)}
    )
    keys.ignore("unpad_inputs", "use_memory_efficient_attention")
    sizes = _read_sizes(keys)
    hidden_act = keys.read_activation("hidden_act", "gelu")
    kind = AttentionKind(
        causal=False, scale=sizes.head_dim**-0.5, rope=_gte_rope(keys, sizes.head_dim)
    )
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=hidden_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=keys.size("type_vocab_size", MOST_WIDTH, least=0, default=1),
        positions=False,
        gated=True,
        fused_qkv=keys.read("pack_qkv", bool, True),
        fused_gate="last",
    )
    return keys.shape(sizes, [kind] * sizes.num_layers, family, tied=True)


def _gte_rope(keys: ShapeKeys, head_dim: int) -> RopeConfig:
    """With NTK scaling (kexue.fm/archives/9706) the base is `factor` times as large, and every
    frequency is divided by factor^(2 / head_dim)."""
    theta, inner = keys.read("rope_theta", float, 10_000.0), keys.nested("rope_scaling")
    if not inner.values:
        return RopeConfig(theta=theta)
    inner.neutral({"mixed_b": (None,)})
    inner.choice("type", {"ntk": None})
    factor = inner.required("factor", float)
    if factor <= 0:
        raise keys.error(f"rope_scaling.factor {factor} is not more than 0")
    scaling = LinearScaling(factor=factor ** (2 / head_dim))
    return RopeConfig(theta=theta * factor, scaling=scaling)


_GTE_LAYERS = (
    (r"\.attention\.qkv_proj\.", ".attention.self.qkv."),
    (r"\.attention\.q_proj\.", ".attention.self.query."),
    (r"\.attention\.k_proj\.", ".attention.self.key."),
    (r"\.attention\.v_proj\.", ".attention.self.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.attn_ln\.", ".attention.output.LayerNorm."),
    (r"\.mlp\.up_gate_proj\.", ".intermediate.dense."),
    (r"\.mlp\.down_proj\.", ".output.dense."),
    (r"\.mlp_ln\.", ".output.LayerNorm."),
)
GTE_NAMES = (
    (r"^(new|gte)\.", ""),
    *_GTE_LAYERS,
    (r"^lm_head\.dense\.", "cls.predictions.transform.dense."),
    (r"^lm_head\.norm\.", "cls.predictions.transform.LayerNorm."),
    (r"^lm_head\.decoder\.", "cls.predictions.decoder."),
)


def read_deberta(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("conv_kernel_size", 0, None)
        | each("legacy", True, None)
        | each("embedding_size pooler_hidden_size", keys.values.get("hidden_size"), None)
    )
    keys.ignore("conv_act", "conv_groups", "pooler_dropout")
    for name in ("relative_attention", "share_att_key"):
        if not keys.read(name, bool, False):
            keys.refuse_key(name, "false is not supported")
    keys.choice("norm_rel_ebd", {"layer_norm": None}, "none")
    _check_products(keys)
    sizes = _read_sizes(keys)
    hidden_act = keys.read_activation("hidden_act", "gelu")
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=hidden_act,
        pooler_act=keys.read_activation("pooler_hidden_act", "gelu"),
        norm_eps=keys.read("layer_norm_eps", float, 1e-7),
        type_vocab_size=keys.size("type_vocab_size", MOST_WIDTH, least=0, default=0),
        positions=keys.read("position_biased_input", bool, True),
    )
    # A score is the sum of three products.
    kind = AttentionKind(
        causal=False,
        scale=(3 * sizes.head_dim) ** -0.5,
        position_bias=_distances(keys, sizes.max_position),
    )
    return keys.shape(sizes, [kind] * sizes.num_layers, family, tied=True)


def _check_products(keys: ShapeKeys) -> None:
    """Refuse fewer than both products with distances. They are in a list, or joined by |."""
    name, products = "pos_att_type", keys.values.get("pos_att_type")
    if isinstance(products, str):
        keys.ignore(name)
        named = [one.strip().lower() for one in products.split("|")]
    else:
        named = keys.read(name, list[str], [])
    if {*named} != {"c2p", "p2c"}:
        keys.refuse_key(name, f"{shown_value(products)} is not supported (c2p with p2c)")


def _distances(keys: ShapeKeys, max_position: int) -> DisentangledBias:
    """Numbers below 1 mean none."""
    buckets = keys.size("position_buckets", MOST_TOKENS, least=-1, default=-1)
    most = keys.size("max_relative_positions", MOST_TOKENS, least=-1, default=-1)
    most = most if most > 0 else max_position
    if buckets <= 0:
        return DisentangledBias(span=most)
    if not 4 <= buckets <= 2 * (most - 2):
        raise keys.error(f"position_buckets {buckets} do not fit distances of {most} tokens")
    return DisentangledBias(span=buckets, max_distance=most)


DEBERTA_NAMES = (
    (r"^deberta\.", ""),
    (r"\.attention\.self\.(query|key|value)_proj\.", r".attention.self.\1."),
    (r"^(lm|mask)_predictions\.", "unused_pooler."),
    (r"^cls\.predictions\.bias$", "cls.predictions.decoder.bias"),
)


_JINA_GATES: Mapping[str, ActivationName] = {"geglu": "gelu", "reglu": "relu"}
"""The activation of the gate, by `feed_forward_type`."""


def read_jina(keys: ShapeKeys) -> ModelShape:
    keys.choice("position_embedding_type", {"alibi": None})
    keys.ignore("emb_pooler", "model_max_length")
    head_act = keys.read_activation("hidden_act", "gelu")
    family = EncoderConfig(
        hidden_act=keys.choice("feed_forward_type", _JINA_GATES),
        head_act=head_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=_segments(keys),
        positions=False,
        gated=True,
        fused_gate="first",
    )
    return _encoder_shape(keys, family, LinearBias())


JINA_NAMES = (
    *BERT_NAMES,
    (r"\.mlp\.gated_layers\.", ".intermediate.dense."),
    (r"\.mlp\.wo\.", ".output.dense."),
    (r"\.mlp\.layernorm\.", ".output.LayerNorm."),
)


def _read_encoder(
    keys: ShapeKeys,
    *,
    head_act: ActivationName | None = None,
    usual_act: ActivationName = "gelu",
    segments: bool = True,
    position_bias: PositionBias | None = None,
    **own: Any,
) -> ModelShape:
    """`usual_act` is the activation where no key names one, `own` are fields of `EncoderConfig`."""
    hidden_act = keys.read_activation("hidden_act", usual_act)
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=head_act or hidden_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=_segments(keys) if segments else 0,
        **own,
    )
    return _encoder_shape(keys, family, position_bias)


def _segments(keys: ShapeKeys) -> int:
    return keys.size("type_vocab_size", MOST_WIDTH, least=0, default=2)


def _encoder_shape(
    keys: ShapeKeys, family: EncoderConfig, position_bias: PositionBias | LinearBias | None = None
) -> ModelShape:
    sizes, unused = _read_sizes(keys), family.first_position
    if sizes.max_position <= unused:
        raise keys.error(f"{sizes.max_position} positions, of which {unused} are not used")
    sizes = msgspec.structs.replace(sizes, max_position=sizes.max_position - unused)
    kind = AttentionKind(causal=False, scale=sizes.head_dim**-0.5, position_bias=position_bias)
    return keys.shape(sizes, [kind] * sizes.num_layers, family, tied=True)


_NOMIC_SPELLING = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "rope_theta": "rotary_emb_base",
}
_NOMIC_NEUTRAL = (
    each("causal mlp_fc1_bias mlp_fc2_bias norm_mlp num_experts num_shared_experts", False, None)
    | each("parallel_block parallel_block_tied_norm prenorm qkv_proj_bias", False, None)
    | each("rotary_emb_interleaved rotary_head_dim use_rms_norm", False, None)
    | each("scale_attn_by_inverse_layer_idx", False, None)
    | each("rotary_emb_fraction scale_attn_weights", True, None)
    | {"moe_every_n_layers": (-1, 0, None), "rotary_emb_scale_base": (None,)}
)
_NOMIC_NOT_READ = """
    attn_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln pad_vocab_size_multiple
    reorder_and_upcast_attn summary_activation summary_proj_to_labels summary_type summary_use_proj
    use_xentropy expert_choice_router ffn_div moe_impl moe_normalize_expert_weights moe_resid_pdrop
    moe_top_k add_pooling_layer
""".split()
"""Keys of training, of execution, and of the mixture of experts, which is refused."""
_GATED: Mapping[str, ActivationName] = {"swiglu": "silu", "geglu": "gelu"}
"""The activation of the gate, by `activation_function`."""


def read_nomicbert(keys: ShapeKeys) -> ModelShape:
    """As `NomicBertConfig`, or with GPT-2's keys, as the first checkpoints' own code."""
    keys.spell(_NOMIC_SPELLING)
    keys.neutral(_NOMIC_NEUTRAL)
    keys.ignore(*_NOMIC_NOT_READ)
    sizes = _read_sizes(keys, _key_of_length(keys))
    rope = keys.read_rope(sizes.max_position, theta=1000.0)
    hidden_act = keys.read_activation("hidden_act")
    if keys.optional("activation_function", str):
        hidden_act = keys.choice("activation_function", _GATED)
    everything = AttentionKind(causal=False, scale=sizes.head_dim**-0.5, rope=rope)
    family = EncoderConfig(
        hidden_act=hidden_act,
        head_act=hidden_act,
        norm_eps=keys.read("layer_norm_eps", float, 1e-12),
        type_vocab_size=_segments(keys),
        positions=False,
        gated=True,
        bias=False,
        fused_qkv=True,
    )
    return keys.shape(sizes, [everything] * sizes.num_layers, family, tied=True)


def _key_of_length(keys: ShapeKeys) -> str:
    """The key that says how long a text may be. With `rotary_scaling_factor` longer texts than in
    training would need bases of their own (dynamic NTK): the length of the training is the most."""
    longest = "n_positions" if keys.has("n_positions") else "max_position_embeddings"
    scaled = keys.optional("rotary_scaling_factor", float)
    keys.ignore("max_position_embeddings", "max_trained_positions", "n_positions")
    return "max_trained_positions" if scaled else longest


NOMICBERT_NAMES = (
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
)


_MODERN_NOT_READ = """
    layer_norm_eps position_embedding_type reference_compile repad_logits_with_grad
    sparse_pred_ignore_index sparse_prediction
""".split()
"""Keys of training, or of code before transformers had the model."""
_CLASSIFIER_POOLING: dict[str, PoolingMode] = {"cls": "cls", "mean": "mean"}


def read_modernbert(keys: ShapeKeys) -> ModelShape:
    keys.ignore(*_MODERN_NOT_READ)
    sizes = _read_sizes(keys)
    wide = keys.read("global_rope_theta", float, 160_000.0)
    narrow = keys.read("local_rope_theta", float, 10_000.0)
    everywhere, nearby = keys.read_ropes(sizes.max_position, (wide, narrow))
    full = AttentionKind(causal=False, scale=sizes.head_dim**-0.5, rope=everywhere)
    # Tokens up to half of `local_attention` away on either side are seen.
    window = (keys.optional_size("local_attention") or 128) // 2 + 1
    within = msgspec.structs.replace(full, rope=nearby)
    sliding = within.narrowed(window, sizes.max_position)
    every = keys.optional_size("global_attn_every_n_layers") or 3
    usual = [layer % every == 0 for layer in range(sizes.num_layers)]
    layers = keys.read_layers(full, sliding, usual)
    family = PreNormEncoderConfig(
        hidden_act=keys.read_activation("hidden_activation", "gelu"),
        head_act=keys.read_activation("classifier_activation", "gelu"),
        norm_eps=keys.read("norm_eps", float, 1e-5),
        norm_bias=keys.read("norm_bias", bool, False),
        attention_bias=keys.read("attention_bias", bool, False),
        mlp_bias=keys.read("mlp_bias", bool, False),
        head_bias=keys.read("classifier_bias", bool, False),
        decoder_bias=keys.read("decoder_bias", bool, True),
    )
    pooling = keys.choice("classifier_pooling", _CLASSIFIER_POOLING, "cls")
    shape = keys.shape(sizes, layers, family, tied=True)
    return msgspec.structs.replace(shape, classifier_pooling=pooling)
