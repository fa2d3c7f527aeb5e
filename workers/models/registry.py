"""Model classes by the architecture that a checkpoint's config.json names; only the chosen one is
imported."""

from importlib import import_module

from workers.models.base import StageModel

_ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "workers.models.llama:LlamaForCausalLM",
    "BertModel": "workers.models.bert:BertModel",
    "BertForMaskedLM": "workers.models.bert:BertForMaskedLM",
    "BertForSequenceClassification": "workers.models.bert:BertForSequenceClassification",
}


class UnknownArchitectureError(ValueError):
    """A checkpoint's architecture is not implemented; the message lists those that are."""


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
