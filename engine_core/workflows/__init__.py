"""A workflow for each task; only the chosen module is imported."""

import importlib

from engine_core.workflows.base import Workflow
from workers.contract.config import Task


def workflow_for(task: Task) -> Workflow:
    """The workflow of a model's task: `engine_core.workflows` has a module of its name."""
    return importlib.import_module(f"engine_core.workflows.{task}").WORKFLOW
