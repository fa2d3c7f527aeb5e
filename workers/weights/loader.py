"""Builds a stage's model and fills its weights, from a checkpoint or with random numbers."""

import hashlib
import logging
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import HOLDER_BYTES, ExecutionConfig, WorkerConfig
from workers.contract.model_config import ModelConfigError
from workers.contract.quantization import FP4_GROUP
from workers.contract.share import Share, shares_of
from workers.layers.experts import CORRECTION
from workers.layers.fp8_method import FP8, FP8_MOST
from workers.layers.layer import TORCH_DTYPES, Memory, Placement
from workers.models.base import StageModel, model_class
from workers.weights.checkpoint import INPUT_SCALES, SCALES, Checkpoint, CheckpointError
from workers.weights.held import Held

_DUMMY_GAIN = 2.0
"""Standard deviation of a dummy layer's outputs for inputs of 1, and of the logits."""


_DUMMY_SCALE = 2.0**-8
"""Of dummy weights in FP8. The largest of a layer with 32 inputs or more are below 448 of it."""

_FP4_DEVIATION = 2.93
"""Standard deviation of the 16 numbers in MXFP4, before their scale."""

_DUMMY_INPUT_SCALE = 2.0**-4

_KV_SCALES = r".*\.self_attn\.([kv]_proj\.)?([kv]|kv|output)_scale"
"""Scales of keys and values in FP8, which are kept in the type that is computed with."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A stage's model, the bytes of its weights, and the seconds it took to load them. A holder
    takes so many bytes of the device for them."""

    model: StageModel
    weight_bytes: int
    seconds: float
    holder_bytes: int = 0


def load_model(worker: WorkerConfig, share: Share, held: Held | None = None) -> LoadedModel:
    """Build this stage's share of the model on its device, from `held` weights or from its files.
    Raises ModelConfigError."""
    start, config = time.monotonic(), worker.execution
    if held is None:
        model = filled_model(worker, share, torch.empty)
    else:
        model, start = _empty_model(worker, share, held.memory()), start - held.seconds
    weight_bytes = held_bytes(config, model)
    model.pack()
    quantization = config.model.quantization
    if quantization is not None and quantization.of_weights and config.fp8_item_bytes > 1:
        _logger.info(
            "%s; dequantised to %s for %s, %s bytes of weights in all",
            *(quantization, config.dtype, config.device_type, f"{weight_bytes:,}"),
        )
    kept = 0 if held is None else held.reserved + HOLDER_BYTES
    return LoadedModel(model, weight_bytes, time.monotonic() - start, kept)


def filled_model(worker: WorkerConfig, share: Share, memory: Memory) -> StageModel:
    """A share of the model whose weights, in `memory`, are read and adjusted, and not yet packed.
    Raises ModelConfigError."""
    model, config = _empty_model(worker, share, memory), worker.execution
    if config.load_format == "dummy":
        fill_randomly(model.weights())
    else:
        _read(config, model, model.weights())
    model.adjust()
    return model


def _empty_model(worker: WorkerConfig, share: Share, memory: Memory) -> StageModel:
    """A model with weights from `memory`, in an order that the configuration decides alone."""
    config, own = worker.execution, replace(Placement.of(worker), memory=memory)
    architecture = model_class(config.model.architecture)
    return architecture(config.model, share, with_names(config, own))


def held_bytes(config: ExecutionConfig, model: StageModel) -> int:
    """Bytes of a model's weights once they are packed."""
    stored = sum(weight.nbytes for weight in model.weights().values())
    return stored + model.added_bytes(config.fp8_item_bytes)


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
        layer = "linear." if module.endswith(".pt") else ""
        return Checkpoint(folder, lambda name: f"{module}/{layer}{name}", module=module)
    model = config.model
    return Checkpoint(folder, family.canonical_name, wrapped=model.wrapped, experts=model.experts)


def check_names(config: ExecutionConfig, checkpoint: Checkpoint) -> None:
    (all_layers,) = shares_of([config.model.num_layers])
    whole = outline(config, all_layers)
    unused = whole.unused.pattern
    if config.model.quantization is not None:
        unused = f"{unused}|{_KV_SCALES}"
    read = whole.weights().keys() | whole.copies().keys()
    checkpoint.check_unread(read, re.compile(unused))


def outline(config: ExecutionConfig, share: Share) -> StageModel:
    """A share of the model without memory: what its weights are called, and their shapes."""
    placement = with_names(config, Placement(torch.device("meta"), TORCH_DTYPES[config.dtype]))
    return model_class(config.model.architecture)(config.model, share, placement)


def with_names(config: ExecutionConfig, placement: Placement) -> Placement:
    """`placement` with the checkpoint's names of layers, if its quantization speaks of them. Raises
    ModelConfigError without weights."""
    quantization = config.model.quantization
    if quantization is None or not quantization.stored or config.load_format == "dummy":
        return placement
    return replace(placement, other_names=open_checkpoint(config).other_names())


def fill_randomly(weights: Mapping[str, torch.Tensor]) -> None:
    """Fill every tensor with values that depend on its name, shape and device alone.

    Matrices have a gain of `_DUMMY_GAIN`, times their scales in FP8, so that logits differ. Weights
    of norms are near 1, or near 2 with a unit offset. Biases are near zero.
    """
    for name, weight in weights.items():
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        random = torch.Generator(device=weight.device)
        random.manual_seed(int.from_bytes(digest, "little") >> 1)
        deviation = _DUMMY_GAIN * (weight.shape[-1] if weight.dim() else 1) ** -0.5
        if weight.dtype == torch.uint8:
            _fill_mxfp4(name, weight, random)
        elif name.endswith(SCALES):
            weight.fill_(_DUMMY_INPUT_SCALE if name.endswith(INPUT_SCALES) else _DUMMY_SCALE)
        elif name.endswith(CORRECTION):
            weight.zero_()  # else it would choose for all tokens alike
        elif weight.dtype == FP8:
            wide = torch.empty_like(weight, dtype=torch.float32)
            wide.normal_(0.0, deviation / _DUMMY_SCALE, generator=random)
            weight.copy_(wide.clamp_(-FP8_MOST, FP8_MOST))
        elif weight.dim() > 1:
            weight.normal_(0.0, deviation, generator=random)
        else:
            mean = 1.0 if name.endswith((".weight", "_scalar")) else 0.0
            weight.normal_(mean, 0.1, generator=random)


def _fill_mxfp4(name: str, weight: torch.Tensor, random: torch.Generator) -> None:
    """Numbers of any bits, or scales with which a matrix has about the usual gain."""
    if name.endswith("blocks"):
        weight.random_(0, 256, generator=random)
    else:
        deviation = _DUMMY_GAIN * (FP4_GROUP * weight.shape[-1]) ** -0.5
        weight.fill_(round(127 + math.log2(deviation / _FP4_DEVIATION)))


def faults(config: ExecutionConfig) -> Iterator[str]:
    """Faults of a checkpoint's weights, a line for each kind: unread tensors, and missing or unfit
    ones. Modules behind an embedder are checked too."""
    (all_layers,) = shares_of([config.model.num_layers])
    try:
        whole = outline(config, all_layers)
    except ModelConfigError as error:
        yield str(error)
        return
    for folder, weights in by_folder(whole.weights()).items():
        try:
            checkpoint = open_checkpoint(config, folder)
        except ModelConfigError as error:
            yield str(error)
            continue
        names = partial(check_names, config, checkpoint)
        copies = partial(checkpoint.check_copies, whole.copies())
        for check in (names, copies, partial(checkpoint.check_fit, weights, whole.rows())):
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
