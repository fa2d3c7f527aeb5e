"""Many prompts at once from Python: jobs of a script or a notebook, without a server of its own."""

from server.batches.batch_llm import BatchLLM

__all__ = ["BatchLLM"]
