"""Tiny encoders of every family, alone and with each head, and what spoils each feature."""

from collections.abc import Mapping
from typing import Any

from tests.workers.checkpoints import BERT, LLAMA
from tests.workers.models.own_code import OwnCode
from tests.workers.models.tiny_models import (
    Spoilt,
    TinyModel,
    fields,
    keys,
    move_rows,
    swap_halves,
    weights,
)
from workers.contract.checkpoint.architectures import FAMILIES

LIMIT = 80
"""Tokens."""

_BERT = BERT | {"max_position_embeddings": LIMIT}
_SIZES = {
    key: size
    for key, size in BERT.items()
    if key not in ("max_position_embeddings", "type_vocab_size")
}
_ROBERTA = _SIZES | {"max_position_embeddings": LIMIT + 2, "type_vocab_size": 1}
_EMBEDDINGS = {
    "positions": weights("position_embeddings", 0.0),
    "norms": weights(r"LayerNorm\.weight", 1.0),
    "biases": weights(r"(query|key|value|attn\.[qkvo]|dense)\.bias", 0.0),
    "activation": keys(hidden_act="relu"),
}
_SEGMENTS = {"segments": weights("token_type_embeddings", 0.0)}
_ROWS_OFF_BY_ONE = {"positions_off_by_one": weights("position_embeddings", move_rows)}
_OFF_BY_ONE = {"positions_off_by_one": keys(pad_token_id=0)}
_DISTANCES = {
    "bias_dropped": weights("relative_attention_bias", 0.0),
    "buckets_off_by_one": weights("relative_attention_bias", move_rows),
}
_POOLER = {"pooler": weights(r"pooler\.dense\.bias", 0.0)}
_PROJECTION = {"projection": weights(r"embeddings_project\.bias", 0.0)}
_SHARED = {
    "projection": weights(r"embedding_hidden_mapping_in\.bias", 0.0),
    "norms": weights(r"full_layer_layer_norm\.weight", 1.0),
    "biases": weights(r"(query|key|value|dense|ffn|ffn_output)\.bias", 0.0),
    "activation": keys(hidden_act="gelu"),
}
_ALBERT_POOLER = {"pooler": weights(r"pooler\.bias", 0.0)}
_DISTILBERT: dict[str, Any] = {
    "vocab_size": 199,
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 4,
    "n_heads": 4,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.15,
}
_DISTILLED = {
    "positions": weights("position_embeddings", 0.0),
    "norms": weights(r"layer_norm\.weight", 1.0),
    "biases": weights(r"([qkv]|out)_lin\.bias", 0.0),
    "activation": keys(activation="relu"),
}
_WINDOW = 9
_MODERNBERT = _SIZES | {
    "max_position_embeddings": LIMIT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "local_attention": 2 * (_WINDOW - 1),
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "initializer_cutoff_factor": 3.0,
}


def _thetas(everywhere: float, nearby: float) -> Spoilt:
    thetas = {"full_attention": everywhere, "sliding_attention": nearby}
    ropes = {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()}
    return keys(rope_parameters=ropes)


_GEMMA = _SIZES | {
    "max_position_embeddings": LIMIT,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "hidden_size": 48,
    "sliding_window": 2 * (_WINDOW - 1),
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "use_bidirectional_attention": True,
}
"""As EmbeddingGemma."""
_GEMMA_FEATURES = {
    "window_too_wide": keys(sliding_window=2 * _WINDOW),
    "window_too_narrow": keys(sliding_window=2 * (_WINDOW - 2)),
    "layer_types": keys(layer_types=["full_attention"] * 4),
    "scale": keys(query_pre_attn_scalar=24),
    "norms": fields(unit_offset_norms=False),
    "embeddings": fields(embedding_scale=1.0),
    "query_norm": weights("q_norm", 0.0),
}

_MODERNBERT_FEATURES = {
    "window_too_wide": keys(local_attention=2 * _WINDOW),
    "window_too_narrow": keys(local_attention=2 * (_WINDOW - 2)),
    "layer_types": keys(layer_types=["full_attention"] * 4),
    "theta": _thetas(10_000.0, 10_000.0),
    "theta_in_windows": _thetas(160_000.0, 160_000.0),
    "gate": weights(r"mlp\.Wi", swap_halves),
    "activation": keys(hidden_activation="relu"),
    "norms": weights(r"(attn|mlp)_norm\.weight", 1.0),
    "final_norm": weights("final_norm", 1.0),
}
_MODERNBERT_BIASES = {
    "norms": weights(r"norm\.bias", 0.0),
    "attention": weights(r"attn\.\w+\.bias", 0.0),
    "mlp": weights(r"mlp\.\w+\.bias", 0.0),
}
_MODERNBERT_HEAD = {
    "pooling": keys(classifier_pooling="cls"),
    "head_norm": weights(r"head\.norm", 1.0),
    "head_activation": keys(classifier_activation="relu"),
}
_NOMICBERT_FEATURES = _SEGMENTS | {
    "theta": keys(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}),
    "gate": fields(hidden_act="gelu"),
    "norms": weights(r"norm[12]\.weight", 1.0),
    "first_norm": weights(r"emb_ln\.weight", 1.0),
}

_EUROBERT_FEATURES = {
    "theta": keys(rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
    "norms": weights("layernorm", 1.0),
    "final_norm": weights(r"^norm\.weight", 1.0),
    "activation": keys(hidden_act="gelu"),
}
_GTE = _BERT | {"layer_norm_eps": 1e-12, "rope_theta": 500.0, "type_vocab_size": 0}
_GTE_FEATURES = {
    "theta": keys(rope_theta=400.0),
    "gate": fields(fused_gate="first"),
    "norms": weights(r"(attn|mlp)_ln\.weight", 1.0),
    "biases": weights(r"(qkv|o|down)_proj\.bias", 0.0),
    "scaling": keys(rope_scaling={"type": "ntk", "factor": 3.0}),
}
_JINA = _BERT | {
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
}
_JINA_FEATURES = _SEGMENTS | {
    "slopes": keys(num_attention_heads=2),
    "gate": fields(fused_gate="last"),
    "activation": keys(feed_forward_type="reglu"),
    "norms": weights(r"mlp\.layernorm\.weight", 1.0),
    "biases": weights(r"(query|key|value|dense|wo)\.bias", 0.0),
}

_DEBERTA = _SIZES | {
    "max_position_embeddings": LIMIT,
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
_DEBERTA_FEATURES = {
    "distances": weights("rel_embeddings", 0.0),
    "buckets_off_by_one": weights("rel_embeddings", move_rows),
    "buckets": keys(max_relative_positions=40),
    "norm_of_distances": weights(r"encoder\.LayerNorm\.weight", 1.0),
    "norms": weights(r"output\.LayerNorm\.weight", 1.0),
    "biases": weights(r"(query|key|value)_proj\.bias", 0.0),
}

_EMBEDDING_DECODER = LLAMA | {
    "max_position_embeddings": LIMIT,
    "is_causal": False,
    "initializer_range": 0.12,
}
_GROWTH = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 5.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.5,
}
_SLIDING = {"sliding_window": _WINDOW - 1}
_FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": _BERT,
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
    "Camembert": _ROBERTA,
    "DistilBert": _DISTILBERT,
    "MPNet": _SIZES | {"max_position_embeddings": LIMIT + 2},
    "Electra": _BERT | {"embedding_size": 48},
    "Albert": _BERT | {"embedding_size": 48},
    "Gemma3": _GEMMA,
    **dict.fromkeys(("Llama", "Mistral", "Ministral3", "Qwen2", "Qwen3"), _EMBEDDING_DECODER),
    "ModernBert": _MODERNBERT,
    "EuroBert": _SIZES
    | {"max_position_embeddings": LIMIT, "num_key_value_heads": 2}
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "DebertaV2": _DEBERTA,
    "New": _GTE,
    "Gte": _GTE,
    "JinaBert": _JINA,
    "NomicBert": _BERT | {"initializer_range": 0.1},
}


_WITH_WINDOWS = ("Gemma3", "Mistral", "ModernBert", "Qwen2")


def _tiny(
    architecture: str, spoilt: Mapping[str, Spoilt] | None = None, **changes: Any
) -> TinyModel:
    family = FAMILIES[architecture].name
    kind = OwnCode if family in ("New", "Gte", "JinaBert") else TinyModel
    return kind(
        architecture=architecture,
        config=_FAMILIES[family] | changes,
        edges=(_WINDOW, 2 * _WINDOW) if family in _WITH_WINDOWS else (),
        spoilt=spoilt or {},
    )


ENCODERS: dict[str, TinyModel] = {
    "bert": _tiny("BertModel", _EMBEDDINGS | _SEGMENTS),
    "bert_gelu_new": _tiny("BertModel", hidden_act="gelu_new"),
    "bert_label": _tiny("BertForSequenceClassification", _POOLER, num_labels=1),
    "bert_words": _tiny("BertForMaskedLM"),
    "roberta": _tiny("RobertaModel", _EMBEDDINGS | _OFF_BY_ONE),
    "roberta_segments": _tiny("RobertaModel", _SEGMENTS, type_vocab_size=2),
    "roberta_labels": _tiny("RobertaForSequenceClassification", num_labels=3),
    "roberta_words": _tiny("RobertaForMaskedLM", hidden_act="relu"),
    "xlm_roberta": _tiny("XLMRobertaModel", _OFF_BY_ONE),
    "xlm_roberta_padding": _tiny(
        "XLMRobertaModel", pad_token_id=0, max_position_embeddings=LIMIT + 1
    ),
    "xlm_roberta_label": _tiny("XLMRobertaForSequenceClassification", num_labels=1),
    "xlm_roberta_words": _tiny("XLMRobertaForMaskedLM", tie_word_embeddings=False),
    "camembert": _tiny("CamembertModel"),
    "camembert_labels": _tiny("CamembertForSequenceClassification", num_labels=3),
    "distilbert": _tiny("DistilBertModel", _DISTILLED | _ROWS_OFF_BY_ONE),
    "distilbert_sines": _tiny("DistilBertModel", sinusoidal_pos_embds=True),
    "distilbert_label": _tiny(
        "DistilBertForSequenceClassification", {"pooler": fields(pooler_act="tanh")}, num_labels=1
    ),
    "distilbert_words_untied": _tiny("DistilBertForMaskedLM", tie_word_embeddings=False),
    "distilbert_words": _tiny(
        "DistilBertForMaskedLM", {"head": weights(r"vocab_projector\.bias", 0.0)}
    ),
    "mpnet": _tiny("MPNetModel", _EMBEDDINGS | _ROWS_OFF_BY_ONE | _DISTANCES),
    "mpnet_label": _tiny("MPNetForSequenceClassification", num_labels=1),
    "mpnet_words": _tiny("MPNetForMaskedLM", hidden_act="relu"),
    "electra": _tiny("ElectraModel", _EMBEDDINGS | _SEGMENTS | _PROJECTION),
    "electra_wide": _tiny("ElectraModel", embedding_size=64),
    "electra_label": _tiny(
        "ElectraForSequenceClassification", {"pooler": fields(pooler_act="tanh")}, num_labels=1
    ),
    "electra_words": _tiny("ElectraForMaskedLM", {"head": fields(head_act="relu")}),
    "electra_words_untied": _tiny("ElectraForMaskedLM", tie_word_embeddings=False),
    "albert": _tiny("AlbertModel", _SEGMENTS | _SHARED),
    "albert_wide": _tiny("AlbertModel", embedding_size=64, hidden_act="gelu"),
    "albert_labels": _tiny("AlbertForSequenceClassification", _ALBERT_POOLER, num_labels=3),
    "albert_words": _tiny("AlbertForMaskedLM"),
    "albert_words_untied": _tiny("AlbertForMaskedLM", tie_word_embeddings=False),
    "embedding_gemma": _tiny("Gemma3TextModel", _GEMMA_FEATURES),
    "llama": _tiny("LlamaModel"),
    "mistral": _tiny("MistralModel", {"window": keys(sliding_window=_WINDOW)}, **_SLIDING),
    "ministral3": _tiny(
        "Ministral3Model", head_dim=24, initializer_range=0.08, rope_parameters=_GROWTH
    ),
    "qwen2": _tiny("Qwen2Model"),
    "qwen2_windows": _tiny(
        "Qwen2Model",
        {"window": keys(sliding_window=_WINDOW)},
        use_sliding_window=True,
        max_window_layers=2,
        **_SLIDING,
    ),
    "qwen3": _tiny("Qwen3Model", head_dim=24),
    "modernbert": _tiny("ModernBertModel", _MODERNBERT_FEATURES),
    "modernbert_biases": _tiny(
        "ModernBertModel", _MODERNBERT_BIASES, norm_bias=True, attention_bias=True, mlp_bias=True
    ),
    "modernbert_label": _tiny(
        "ModernBertForSequenceClassification", num_labels=1, classifier_bias=True
    ),
    "modernbert_labels": _tiny(
        "ModernBertForSequenceClassification",
        _MODERNBERT_HEAD,
        num_labels=3,
        classifier_pooling="mean",
    ),
    "modernbert_words": _tiny(
        "ModernBertForMaskedLM", {"decoder_bias": weights(r"decoder\.bias", 0.0)}
    ),
    "modernbert_words_untied": _tiny(
        "ModernBertForMaskedLM", tie_word_embeddings=False, decoder_bias=False
    ),
    "eurobert": _tiny("EuroBertModel", _EUROBERT_FEATURES),
    "eurobert_biases": _tiny(
        "EuroBertModel", {"biases": weights(r"proj\.bias", 0.0)}, attention_bias=True
    ),
    "eurobert_late": _tiny(
        "EuroBertForSequenceClassification",
        {"pooling": keys(classifier_pooling="mean"), "dense": weights(r"dense\.bias", 0.0)},
        num_labels=3,
    ),
    "eurobert_mean": _tiny(
        "EuroBertForSequenceClassification", num_labels=1, classifier_pooling="mean"
    ),
    "eurobert_bos": _tiny(
        "EuroBertForSequenceClassification", num_labels=1, classifier_pooling="bos"
    ),
    "eurobert_words": _tiny("EuroBertForMaskedLM"),
    "eurobert_words_tied": _tiny("EuroBertForMaskedLM", tie_word_embeddings=True),
    "deberta": _tiny("DebertaV2Model", _DEBERTA_FEATURES),
    "deberta_single_distances": _tiny(
        "DebertaV2Model",
        position_buckets=-1,
        max_relative_positions=50,
        pos_att_type=["c2p", "p2c"],
    ),
    "deberta_embeddings": _tiny(
        "DebertaV2Model",
        {"positions": weights("position_embeddings", 0.0)} | _SEGMENTS,
        position_biased_input=True,
        type_vocab_size=2,
    ),
    "deberta_label": _tiny("DebertaV2ForSequenceClassification", _POOLER, num_labels=1),
    "deberta_words": _tiny("DebertaV2ForMaskedLM"),
    "gte": _tiny("NewModel", _GTE_FEATURES, rope_scaling={"type": "ntk", "factor": 2.0}),
    "gte_segments": _tiny("NewModel", _SEGMENTS, type_vocab_size=2, pack_qkv=False),
    "gte_labels": _tiny("NewForSequenceClassification", _POOLER, type_vocab_size=1),
    "gte_words": _tiny("NewForMaskedLM"),
    "arctic": _tiny("GteModel", type_vocab_size=1),
    "jina": _tiny("JinaBertModel", _JINA_FEATURES, num_attention_heads=4),
    "jina_six_heads": _tiny(
        "JinaBertModel", num_attention_heads=6, hidden_size=72, feed_forward_type="reglu"
    ),
    "jina_labels": _tiny("JinaBertForSequenceClassification", _POOLER),
    "jina_words": _tiny("JinaBertForMaskedLM"),
    "nomicbert": _tiny("NomicBertModel", _NOMICBERT_FEATURES),
    "nomicbert_gelu": _tiny("NomicBertModel", hidden_act="gelu"),
    "nomicbert_labels": _tiny("NomicBertForSequenceClassification", _POOLER, num_labels=3),
    "nomicbert_words": _tiny("NomicBertForMaskedLM"),
}
