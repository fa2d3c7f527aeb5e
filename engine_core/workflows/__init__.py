"""A workflow for each task, with a KV cache or without; only the chosen module is imported."""

import importlib

from engine_core.workflows.base import Workflow
from workers.contract.config import Task


def workflow_for(task: Task, *, has_kv_cache: bool) -> Workflow:
    """The workflow of a model that does `task`."""
    encoder = "decoder_encode" if has_kv_cache else "encode"
    module = "generate" if task == "generate" else encoder
    return importlib.import_module(f"engine_core.workflows.{module}").WORKFLOWS[task]
