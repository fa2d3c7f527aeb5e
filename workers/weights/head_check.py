"""What the weights of a checkpoint would be refused for by the loader. No weight is read.

`penstock inspect`, which does not import torch, runs it as a process of its own: an ExecutionConfig
comes on standard input, a list of lines goes to standard output, both in JSON.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

from workers.contract.config import ExecutionConfig
from workers.contract.share import shares_of
from workers.layers.placement import Placement
from workers.weights.loader import TORCH_DTYPES, check_names, open_checkpoint, outline
from workers.weights.module_weights import check_modules, embedding_modules
from workers.weights.tensor_file import CheckpointError


def faults(config: ExecutionConfig) -> Iterator[str]:
    """A line for each kind of fault: tensors that are not read, that lack or do not fit, and the
    same of the modules behind an embedder."""
    (all_layers,) = shares_of([config.model.num_layers])
    whole = outline(config, all_layers)
    placement = Placement(torch.device("meta"), TORCH_DTYPES[config.dtype])
    modules = embedding_modules(config, all_layers, placement)
    yield from _of(lambda: check_names(config, open_checkpoint(config)))
    yield from _of(lambda: open_checkpoint(config).check_fit(whole.weights(), whole.rows()))
    yield from _of(lambda: check_modules(modules, Path(config.model.path)))


def _of(check: Callable[[], None]) -> Iterator[str]:
    try:
        check()
    except CheckpointError as error:
        yield str(error)


def main() -> None:
    """Answer one question."""
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=ExecutionConfig)
    sys.stdout.buffer.write(msgspec.json.encode(list(faults(config))))


if __name__ == "__main__":
    main()
