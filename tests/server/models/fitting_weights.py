"""A small checkpoint whose weights fit its model."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.server.checkpoint_folders import write_checkpoint
from tests.workers.checkpoints import worker_config
from workers.contract.share import shares_of
from workers.weights.loader import outline


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """config.json, tokenizer.json and model.safetensors in a new folder."""
    write_checkpoint(folder, config)
    save_file(fitting(folder), folder / "model.safetensors")
    return folder


def fitting(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that the model of `config.json` reads: zeros."""
    execution = worker_config(folder).execution
    (share,) = shares_of([execution.model.num_layers])
    whole = outline(execution, share)
    return {name: torch.zeros(weight.shape) for name, weight in whole.weights().items()}
