"""Fills the modules behind an embedder's pooling, each from its own folder of the checkpoint."""

import logging
import re
from pathlib import Path

import torch

from workers.contract.config import ExecutionConfig
from workers.contract.share import Share
from workers.heads.vector_modules import VectorModules
from workers.layers.placement import Placement
from workers.weights.checkpoint import Checkpoint

_logger = logging.getLogger(__name__)

_NOTHING = re.compile(r"(?!)")


def embedding_modules(
    execution: ExecutionConfig, share: Share, placement: Placement
) -> VectorModules:
    """The stage's, not filled yet: an embedder's last stage has all of them, others have none."""
    here = share.last and execution.task == "embed"
    return VectorModules(execution.model.worker_modules if here else (), placement)


def read_modules(modules: VectorModules, path: Path) -> None:
    """Fill them from the checkpoint in folder `path`. Raises CheckpointError."""
    for folder, weights in modules.weights_by_folder().items():
        checkpoint = Checkpoint(path, str, module=folder)
        for note in checkpoint.notes():
            _logger.info("%s: %s", folder, note)
        checkpoint.check_unread(weights.keys(), _NOTHING)
        checkpoint.read(weights, {}, _ignore)


def check_modules(modules: VectorModules, path: Path) -> None:
    """Raises CheckpointError where `read_modules` would."""
    for folder, weights in modules.weights_by_folder().items():
        checkpoint = Checkpoint(path, str, module=folder)
        checkpoint.check_unread(weights.keys(), _NOTHING)
        checkpoint.check_fit(weights, {})


def _ignore(weight: torch.Tensor) -> None:
    """They are too small to report progress."""
