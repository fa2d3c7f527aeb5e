"""The class that implements an architecture, imported when a checkpoint of it is loaded."""

from importlib import import_module

from workers.contract.families.table import family_of
from workers.models.base import StageModel


def model_class(architecture: str) -> type[StageModel]:
    """The class of `architecture`'s row in the table of families. Raises
    UnknownArchitectureError."""
    module, _, attribute = family_of(architecture).model_class.partition(":")
    model: type[StageModel] = getattr(import_module(module), attribute)
    return model
