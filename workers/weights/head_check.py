"""What the weights of a checkpoint would be refused for by the loader. No weight is read.

`penstock inspect`, which does not import torch, runs it as a process of its own: an ExecutionConfig
comes on standard input, a list of lines goes to standard output, both in JSON.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from workers.contract.config import ExecutionConfig
from workers.contract.share import shares_of
from workers.weights.loader import by_folder, check_names, open_checkpoint, outline
from workers.weights.tensor_file import CheckpointError


def faults(config: ExecutionConfig) -> Iterator[str]:
    """A line for each kind of fault: tensors that are not read, that lack or do not fit, and the
    same of the modules behind an embedder."""
    (all_layers,) = shares_of([config.model.num_layers])
    whole = outline(config, all_layers)
    for folder, weights in by_folder(whole.weights()).items():
        try:
            checkpoint = open_checkpoint(config, folder)
        except CheckpointError as error:
            yield str(error)
            continue
        yield from _of(partial(check_names, config, checkpoint))
        yield from _of(partial(checkpoint.check_fit, weights, whole.rows()))


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
