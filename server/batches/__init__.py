"""Many requests at once: `BatchLLM` for Python, files of requests, and stored batches."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.batches.batch_llm import BatchLLM

__all__ = ["BatchLLM"]


def __getattr__(name: str) -> object:
    """Import `BatchLLM` with its first use: API processes need the state folder alone."""
    if name != "BatchLLM":
        raise AttributeError(name)
    from server.batches.batch_llm import BatchLLM  # noqa: PLC0415

    return BatchLLM
