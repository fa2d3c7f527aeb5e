"""A workflow for each task, with a KV cache or without; only the chosen module is imported."""

import importlib

from engine_core.workflows.base import Workflow
from workers.contract.config import Task

_MODULES: dict[tuple[Task, bool], str] = {
    ("generate", True): "generate",
    ("embed", True): "decoder_embed",
    ("embed", False): "embed",
    ("embed_sparse", False): "embed_sparse",
    ("classify", True): "decoder_classify",
    ("classify", False): "classify",
    ("rerank", True): "rerank",
}


def workflow_for(task: Task, *, has_kv_cache: bool) -> Workflow:
    """The workflow of a model that does `task`."""
    module = _MODULES[task, has_kv_cache]
    return importlib.import_module(f"engine_core.workflows.{module}").WORKFLOW
