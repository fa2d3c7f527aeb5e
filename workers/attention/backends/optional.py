"""What comes from packages that need not be there."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def imported(module: str, name: str) -> Callable[..., Any]:
    """A function or class of a module that is imported only where its backend is used.

    Raises ImportError or AttributeError where the package is not the one expected, and whatever
    else a broken build raises when it is imported.
    """
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
