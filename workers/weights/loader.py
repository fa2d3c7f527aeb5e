"""Builds a stage's model and fills its weights, from a checkpoint or with random numbers."""

import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.model_config import ModelConfigError
from workers.contract.share import Share, shares_of
from workers.layers.layer import TORCH_DTYPES, Placement
from workers.models.base import StageModel, model_class
from workers.weights.checkpoint import Checkpoint, CheckpointError

_DUMMY_GAIN = 2.0
"""Standard deviation of a dummy layer's outputs for inputs of 1, and of the logits."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A stage's model, the bytes of its weights, and the seconds it took to load them."""

    model: StageModel
    weight_bytes: int
    seconds: float


def load_model(worker: WorkerConfig, share: Share) -> LoadedModel:
    """Build this stage's share of the model on its device, and fill its weights. Raises
    ModelConfigError."""
    start, config = time.monotonic(), worker.execution
    placement = Placement.of(worker)
    architecture = model_class(config.model.architecture)
    model = architecture(config.model, share, placement)
    weights = model.weights()
    weight_bytes = sum(weight.nbytes for weight in weights.values())
    if config.load_format == "dummy":
        fill_randomly(weights)
    else:
        _read(config, model, weights)
    del weights  # packing a weight frees it
    model.pack()
    return LoadedModel(model, weight_bytes, time.monotonic() - start)


def _read(config: ExecutionConfig, model: StageModel, weights: Mapping[str, torch.Tensor]) -> None:
    for folder, own in by_folder(weights).items():
        checkpoint = open_checkpoint(config, folder)
        check_names(config, checkpoint)
        checkpoint.check_copies(model.copies())
        checkpoint.read(own, model.rows())


def by_folder(weights: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """The weights by the folder of the checkpoint that holds them: "" for the model's own, else a
    module's."""
    folders: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, weight in weights.items():
        folders[name.rpartition("/")[0]][name] = weight
    return folders


def open_checkpoint(config: ExecutionConfig, module: str = "") -> Checkpoint:
    folder, family = Path(config.model.path), family_of(config.model.architecture)
    if module:
        return Checkpoint(folder, lambda name: f"{module}/{name}", module=module)
    return Checkpoint(folder, family.canonical_name, wrapped=config.model.wrapped)


def check_names(config: ExecutionConfig, checkpoint: Checkpoint) -> None:
    (all_layers,) = shares_of([config.model.num_layers])
    whole = outline(config, all_layers)
    checkpoint.check_unread(whole.weights().keys() | whole.copies().keys(), whole.unused)


def outline(config: ExecutionConfig, share: Share) -> StageModel:
    """A share of the model without memory: what its weights are called, and their shapes."""
    placement = Placement(torch.device("meta"), TORCH_DTYPES[config.dtype])
    return model_class(config.model.architecture)(config.model, share, placement)


def fill_randomly(weights: Mapping[str, torch.Tensor]) -> None:
    """Fill every tensor with values that depend on its name, shape and device alone.

    Matrices have a gain of `_DUMMY_GAIN`, so that logits differ. Weights of norms are near 1, or
    near 2 with a unit offset. Biases are near zero.
    """
    for name, weight in weights.items():
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        random = torch.Generator(device=weight.device)
        random.manual_seed(int.from_bytes(digest, "little") >> 1)
        if weight.dim() > 1:
            weight.normal_(0.0, _DUMMY_GAIN * weight.shape[-1] ** -0.5, generator=random)
        else:
            mean = 1.0 if name.endswith(".weight") else 0.0
            weight.normal_(mean, 0.1, generator=random)


def faults(config: ExecutionConfig) -> Iterator[str]:
    """Faults of a checkpoint's weights, a line for each kind: unread tensors, and missing or unfit
    ones. Modules behind an embedder are checked too."""
    (all_layers,) = shares_of([config.model.num_layers])
    whole = outline(config, all_layers)
    for folder, weights in by_folder(whole.weights()).items():
        try:
            checkpoint = open_checkpoint(config, folder)
        except ModelConfigError as error:
            yield str(error)
            continue
        names = partial(check_names, config, checkpoint)
        for check in (names, partial(checkpoint.check_fit, weights, whole.rows())):
            try:
                check()
            except CheckpointError as error:
                yield str(error)


def main() -> None:
    """Print the faults of a checkpoint's weights, for `penstock inspect`, which imports no torch.

    An ExecutionConfig comes on standard input, a list of lines goes to standard output, in JSON.
    """
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=ExecutionConfig)
    sys.stdout.buffer.write(msgspec.json.encode(list(faults(config))))


if __name__ == "__main__":
    main()
