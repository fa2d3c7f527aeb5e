"""What transformers and sentence-transformers assume about a checkpoint of an architecture.
`workers/contract/families.py` has the conventions of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from workers.contract.model_config import ModelConfigError

Neutral = Mapping[str, tuple[Any, ...]]
"""Keys that are not implemented though they can change a model's numbers -> the values with which
they do not. A checkpoint with another value is refused; one without the key is not."""

_SHOWN_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """One architecture's.

    From its class of configuration in transformers, what holds where `config.json` has no such key:

    hidden_act    default of `hidden_act`
    norm_eps_key  the key of the norms' epsilon, and
    norm_eps      its default
    tied          default of `tie_word_embeddings`
    neutral       other keys, which are checked only

    From sentence-transformers, with the file whose entries must agree:

    library_class  its class for such models, None if it has none: `model_type` in
                   config_sentence_transformers.json
    task           the task for which its first module runs the model: `transformer_task` in
                   sentence_bert_config.json
    output         the model's output that the module passes on: `method_output_name` there
    output_name    the name under which it does: `module_output_name` there
    pooling        the type of its second module in modules.json, None if there is none
    after_pooling  types that may follow
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


def check_neutral(file: Path, values: Mapping[str, Any], neutral: Neutral) -> None:
    """Raises ModelConfigError, naming file and key, for one of `values` that is not neutral."""
    for key, allowed in neutral.items():
        if key in values and values[key] not in allowed:
            shown = msgspec.json.encode(values[key]).decode()
            shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}..."
            raise ModelConfigError(f"{file}: {key} {shown} is not supported")
