"""What transformers and sentence-transformers assume of a checkpoint, and the keys of its files
that depart from it. `workers.contract.families` has the conventions of each architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from workers.contract.model_config import ModelConfigError

Neutral = Mapping[str, tuple[Any, ...]]
"""Keys that change a model's numbers and are not obeyed -> the values that leave them as they are.
A key that is absent is neutral too."""

_SHOWN_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """First those of `config.json`: defaults, and the `neutral` values. Then those of
    sentence-transformers.

    The library's class for such a model is `library_class`. Its first module runs the architecture
    for `task` (transformers' name) and calls its `output` `output_name`. The module `pooling`
    follows, if there is one, and then any of `after_pooling`.
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
