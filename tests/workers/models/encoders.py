"""Tiny encoders of every family, alone and with each head, and what spoils each feature."""

from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CamembertConfig,
    CamembertForSequenceClassification,
    CamembertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from tests.workers.models.tiny_models import Spoilt, TinyModel

LIMIT = 80
"""Tokens."""

_SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "initializer_range": 0.15,
}
_BERT = _SIZES | {"max_position_embeddings": LIMIT, "type_vocab_size": 2}
_ROBERTA = _SIZES | {"max_position_embeddings": LIMIT + 2, "type_vocab_size": 1}
_EMBEDDINGS = {
    "positions": Spoilt(tensors={"position_embeddings": 0.0}),
    "norms": Spoilt(tensors={r"LayerNorm\.weight": 1.0}),
    "biases": Spoilt(tensors={r"(query|key|value|dense)\.bias": 0.0}),
    "activation": Spoilt(config={"hidden_act": "relu"}),
}
_SEGMENTS = {"segments": Spoilt(tensors={"token_type_embeddings": 0.0})}
_OFF_BY_ONE = {"positions_off_by_one": Spoilt(config={"pad_token_id": 0})}
_POOLER = {"pooler": Spoilt(tensors={r"pooler\.dense\.bias": 0.0})}


def _bert(model_class: Any, spoilt: dict[str, Spoilt] | None = None, **changes: Any) -> TinyModel:
    return TinyModel(
        model_class=model_class,
        config_class=BertConfig,
        config=_BERT | changes,
        spoilt=spoilt or {},
    )


def _roberta(
    model_class: Any,
    config_class: Any = RobertaConfig,
    spoilt: dict[str, Spoilt] | None = None,
    **changes: Any,
) -> TinyModel:
    return TinyModel(
        model_class=model_class,
        config_class=config_class,
        config=_ROBERTA | changes,
        spoilt=spoilt or {},
    )


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
    "positions": Spoilt(tensors={"position_embeddings": 0.0}),
    "norms": Spoilt(tensors={r"layer_norm\.weight": 1.0}),
    "biases": Spoilt(tensors={r"([qkv]|out)_lin\.bias": 0.0}),
    "activation": Spoilt(config={"activation": "relu"}),
}


def _distilbert(
    model_class: Any, spoilt: dict[str, Spoilt] | None = None, **changes: Any
) -> TinyModel:
    return TinyModel(
        model_class=model_class,
        config_class=DistilBertConfig,
        config=_DISTILBERT | changes,
        spoilt=spoilt or {},
    )


ENCODERS: dict[str, TinyModel] = {
    "bert": _bert(BertModel, _EMBEDDINGS | _SEGMENTS),
    "bert_gelu_new": _bert(BertModel, hidden_act="gelu_new"),
    "bert_relu": _bert(BertModel, hidden_act="relu"),
    "bert_label": _bert(BertForSequenceClassification, _POOLER, num_labels=1),
    "bert_labels": _bert(BertForSequenceClassification, num_labels=3),
    "bert_words": _bert(BertForMaskedLM),
    "roberta": _roberta(RobertaModel, RobertaConfig, _EMBEDDINGS | _OFF_BY_ONE),
    "roberta_segments": _roberta(RobertaModel, RobertaConfig, _SEGMENTS, type_vocab_size=2),
    "roberta_labels": _roberta(RobertaForSequenceClassification, num_labels=3),
    "roberta_words": _roberta(RobertaForMaskedLM, hidden_act="relu"),
    "xlm_roberta": _roberta(XLMRobertaModel, XLMRobertaConfig, _OFF_BY_ONE),
    "xlm_roberta_label": _roberta(
        XLMRobertaForSequenceClassification, XLMRobertaConfig, num_labels=1
    ),
    "xlm_roberta_words": _roberta(
        XLMRobertaForMaskedLM, XLMRobertaConfig, tie_word_embeddings=False
    ),
    "camembert": _roberta(CamembertModel, CamembertConfig),
    "camembert_labels": _roberta(CamembertForSequenceClassification, CamembertConfig, num_labels=3),
    "distilbert": _distilbert(DistilBertModel, _DISTILLED),
    "distilbert_sines": _distilbert(DistilBertModel, sinusoidal_pos_embds=True),
    "distilbert_label": _distilbert(
        DistilBertForSequenceClassification,
        {"pooler": Spoilt(family={"pooler_act": "tanh"})},
        num_labels=1,
    ),
    "distilbert_words_untied": _distilbert(DistilBertForMaskedLM, tie_word_embeddings=False),
    "distilbert_labels": _distilbert(DistilBertForSequenceClassification, num_labels=3),
    "distilbert_words": _distilbert(
        DistilBertForMaskedLM, {"head": Spoilt(tensors={r"vocab_projector\.bias": 0.0})}
    ),
}
