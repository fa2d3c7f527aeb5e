"""Functions and classes of optional packages."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def imported(module: str, name: str) -> Callable[..., Any]:
    """The function or class `name` of `module`, which is imported now.

    Raises ImportError or AttributeError if the package is not the expected one, and anything that a
    broken build raises on import.
    """
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
