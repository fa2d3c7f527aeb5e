"""Which workflow serves an architecture: one table; only the chosen module is imported."""

import importlib

from engine_core.workflows.base import Workflow

_WORKFLOW_OF = {
    "LlamaForCausalLM": "generate",
    "BertModel": "embed",
    "BertForMaskedLM": "embed_sparse",
    "BertForSequenceClassification": "classify",
}


class UnknownArchitectureError(ValueError):
    """No workflow serves this architecture; the message names the supported ones."""


def workflow_for(architecture: str) -> Workflow:
    """The workflow of a checkpoint's architecture. Raises UnknownArchitectureError."""
    name = _WORKFLOW_OF.get(architecture)
    if name is None:
        known = ", ".join(_WORKFLOW_OF)
        raise UnknownArchitectureError(
            f"architecture {architecture} is not supported (supported: {known})"
        )
    return importlib.import_module(f"engine_core.workflows.{name}").WORKFLOW
