"""The table of the architectures that are served, by their names in `config.json`."""

from collections.abc import Mapping
from difflib import get_close_matches

from workers.contract.families.base import Family
from workers.contract.families.bert import BERT
from workers.contract.families.llama import LLAMA
from workers.contract.families.mistral import MISTRAL
from workers.contract.families.modernbert import MODERNBERT
from workers.contract.families.qwen import QWEN2, QWEN3
from workers.contract.families.roberta import ROBERTA

FAMILIES: Mapping[str, Family] = {
    **LLAMA,
    **MISTRAL,
    **QWEN2,
    **QWEN3,
    **BERT,
    **ROBERTA,
    **MODERNBERT,
}


class UnknownArchitectureError(ValueError):
    """A checkpoint's architecture is not implemented; the message lists those that are."""


def family_of(architecture: str) -> Family:
    """The row of `architecture`. Raises UnknownArchitectureError."""
    family = FAMILIES.get(architecture)
    if family is None:
        near = get_close_matches(architecture, FAMILIES, n=1)
        nearest = f" (the nearest name is {near[0]})" if near else ""
        raise UnknownArchitectureError(
            f"architecture {architecture!r} is not supported{nearest}; supported are "
            f"{', '.join(FAMILIES)}"
        )
    return family
