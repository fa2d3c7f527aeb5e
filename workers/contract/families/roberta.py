"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and the models of its shape: XLM-RoBERTa (Conneau et
al. 2019, arXiv:1911.02116) and CamemBERT (Martin et al. 2019, arXiv:1911.03894).

A BERT whose positions begin after that of the padding token, with heads of other names.
"""

from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.families.base import encoder
from workers.contract.families.bert import read_encoder
from workers.contract.model_shape import ModelShape


def read_roberta(keys: ConfigKeys) -> ModelShape:
    """As `RobertaConfig` of transformers. Raises ModelConfigError."""
    first = keys.read("pad_token_id", int, 1) + 1
    return read_encoder(keys, first_position=first, head_act="gelu")


HEAD_RENAMES = (
    (r"^pooler\.", "unused_pooler."),  # the classifier's first layer is in its place
    (r"^classifier\.dense\.", "pooler.dense."),
    (r"^classifier\.out_proj\.", "classifier."),
    (r"^lm_head\.(dense|layer_norm)\.", r"cls.predictions.transform.\1."),
    (r"\.transform\.layer_norm\.", ".transform.LayerNorm."),
    (r"^lm_head\.(decoder\.)?(weight|bias)$", r"cls.predictions.decoder.\2"),
)
_RENAMES = (
    (r"^roberta\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    *HEAD_RENAMES,
)

ROBERTA = (
    encoder("Roberta", read_roberta, _RENAMES)
    | encoder("XLMRoberta", read_roberta, _RENAMES)
    | encoder("Camembert", read_roberta, _RENAMES)
)
