"""The model families: one table of the architectures that are served.

To add one, implement `StageModel` (`workers/models/base.py`) in a file of `workers/models`, and
give it a row in `FAMILIES`: the name in a checkpoint's `config.json`, its task (which decides the
workflow, `engine_core.workflows`), its class, and its conventions. Keys of `config.json` that no
other architecture has are read in `workers/contract/checkpoint/checkpoint_config.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workers.contract.config import Task
from workers.contract.conventions import Conventions, Neutral


class UnknownArchitectureError(ValueError):
    """A checkpoint's architecture is not implemented; the message lists those that are."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. `model_class` is `module:class`; only workers import it."""

    task: Task
    model_class: str
    conventions: Conventions


_NEUTRAL: Neutral = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "quantization": (None,),
    "per_layer_config": (None, {}),
    "is_encoder_decoder": (False, None),
    "pruned_heads": (None, {}),
    "sliding_window": (None,),
    "attention_chunk_size": (None,),
}
_NEUTRAL_IN_LLAMA: Neutral = {
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "partial_rotary_factor": (1, None),
    "logit_scale": (1, None),
    "llama_4_scaling": (None,),
}
_NEUTRAL_IN_BERT: Neutral = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


_BERT = Conventions(
    hidden_act="gelu",
    norm_eps_key="layer_norm_eps",
    norm_eps=1e-12,
    tied=True,
    neutral={**_NEUTRAL, **_NEUTRAL_IN_BERT},
    library_class="SentenceTransformer",
    task="feature-extraction",
    output="last_hidden_state",
    output_name="token_embeddings",
    pooling="Pooling",
    after_pooling=("Normalize", "Dropout"),
)
_MASKED_LM = replace(
    _BERT,
    library_class="SparseEncoder",
    task="fill-mask",
    output="logits",
    pooling="SpladePooling",
    after_pooling=(),
)
_CLASSIFIER = replace(
    _BERT,
    library_class="CrossEncoder",
    task="sequence-classification",
    output="logits",
    output_name="scores",
    pooling=None,
    after_pooling=(),
)
_LLAMA = Conventions(
    hidden_act="silu",
    norm_eps_key="rms_norm_eps",
    norm_eps=1e-6,
    tied=False,
    neutral={**_NEUTRAL, **_NEUTRAL_IN_LLAMA},
    library_class=None,
    task="text-generation",
    output="logits",
    output_name="causal_logits",
    pooling=None,
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family("generate", "workers.models.llama:LlamaForCausalLM", _LLAMA),
    "BertModel": Family("embed", "workers.models.bert:BertModel", _BERT),
    "BertForMaskedLM": Family("embed_sparse", "workers.models.bert:BertForMaskedLM", _MASKED_LM),
    "BertForSequenceClassification": Family(
        "classify", "workers.models.bert:BertForSequenceClassification", _CLASSIFIER
    ),
}
"""By the name in a checkpoint's `config.json`."""


def family_of(architecture: str) -> Family:
    """The row of `architecture`. Raises UnknownArchitectureError."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnknownArchitectureError(
            f"architecture {architecture!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return family
