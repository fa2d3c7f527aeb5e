"""What transformers and sentence-transformers take for granted in checkpoints of an architecture,
and the keys with which a checkpoint departs from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from workers.contract.model_config import ModelConfigError

Neutral = Mapping[str, tuple[Any, ...]]
"""Keys that change a model's numbers and are not obeyed -> the values that leave them as they are.
A key that is absent is neutral too."""

_SHOWN_LENGTH = 80

_OF_ANY_MODEL: Neutral = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "quantization": (None,),
    "per_layer_config": (None, {}),
    "is_encoder_decoder": (False, None),
    "pruned_heads": (None, {}),
    "sliding_window": (None,),
    "attention_chunk_size": (None,),
}
_OF_LLAMA: Neutral = {
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "partial_rotary_factor": (1, None),
    "logit_scale": (1, None),
    "llama_4_scaling": (None,),
}
_OF_BERT: Neutral = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Those of `config.json`: defaults, and what is `neutral`; then sentence-transformers'.

    The library has a model of `library_class`, whose first module runs the architecture for `task`
    and calls its `output`, as transformers names it, `output_name`. A module `pooling` follows, if
    there is one, and of `after_pooling` any number.
    """

    hidden_act: str
    norm_eps_key: str
    norm_eps: float
    tied: bool
    neutral: Neutral
    library_class: str | None
    task: str
    output: str
    output_name: str
    pooling: str | None
    after_pooling: tuple[str, ...] = ()


_BERT = Conventions(
    hidden_act="gelu",
    norm_eps_key="layer_norm_eps",
    norm_eps=1e-12,
    tied=True,
    neutral={**_OF_ANY_MODEL, **_OF_BERT},
    library_class="SentenceTransformer",
    task="feature-extraction",
    output="last_hidden_state",
    output_name="token_embeddings",
    pooling="Pooling",
    after_pooling=("Normalize", "Dropout"),
)

CONVENTIONS: Mapping[str, Conventions] = {
    "LlamaForCausalLM": Conventions(
        hidden_act="silu",
        norm_eps_key="rms_norm_eps",
        norm_eps=1e-6,
        tied=False,
        neutral={**_OF_ANY_MODEL, **_OF_LLAMA},
        library_class=None,
        task="text-generation",
        output="logits",
        output_name="causal_logits",
        pooling=None,
    ),
    "BertModel": _BERT,
    "BertForMaskedLM": replace(
        _BERT,
        library_class="SparseEncoder",
        task="fill-mask",
        output="logits",
        pooling="SpladePooling",
        after_pooling=(),
    ),
    "BertForSequenceClassification": replace(
        _BERT,
        library_class="CrossEncoder",
        task="sequence-classification",
        output="logits",
        output_name="scores",
        pooling=None,
        after_pooling=(),
    ),
}
"""By the name in `config.json`: those of `workers.models.registry`. No other is checked."""


def check_neutral(file: Path, values: Mapping[str, Any], neutral: Neutral) -> None:
    """Raises ModelConfigError, naming file and key, for one of `values` that is not neutral."""
    for key, allowed in neutral.items():
        if key in values and values[key] not in allowed:
            shown = msgspec.json.encode(values[key]).decode()
            shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}..."
            raise ModelConfigError(f"{file}: {key} {shown} is not supported")
