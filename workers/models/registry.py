"""Architectures by the name in a checkpoint's config.json; only the chosen one gets imported."""

from importlib import import_module

from workers.models.base import StageModel

_ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "workers.models.llama:LlamaForCausalLM",
    "BertModel": "workers.models.bert:BertModel",
    "BertForMaskedLM": "workers.models.bert:BertForMaskedLM",
    "BertForSequenceClassification": "workers.models.bert:BertForSequenceClassification",
}


class UnknownArchitectureError(ValueError):
    """A checkpoint of an architecture that is not implemented; one line lists those that are."""


def model_class(architecture: str) -> type[StageModel]:
    """The class that implements `architecture`. Raises UnknownArchitectureError."""
    if architecture not in _ARCHITECTURES:
        raise UnknownArchitectureError(
            f"architecture {architecture!r} is not supported; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    module, _, attribute = _ARCHITECTURES[architecture].partition(":")
    model: type[StageModel] = getattr(import_module(module), attribute)
    return model
