"""A stage's weights in the memory of its holder (`workers/weights/holder.py`)."""

import pickle
from typing import NamedTuple

import msgspec
import torch
import zmq

from workers.contract.config import WorkerConfig
from workers.contract.share import Share
from workers.layers.layer import Memory
from workers.links.engine_link import ZMQContext


class Held(NamedTuple):
    """Filled tensors in the order in which a model takes them. The holder's allocator has
    `reserved` so many bytes of the GPU. It has just loaded them for some seconds, or 0."""

    tensors: list[torch.Tensor]
    reserved: int
    seconds: float

    def memory(self) -> Memory:
        """Memory in which weights are filled already, for one model."""
        left = iter(self.tensors)

        def next_of(
            shape: tuple[int, ...], /, *, device: torch.device, dtype: torch.dtype
        ) -> torch.Tensor:
            tensor = next(left)
            found = tensor.shape, tensor.device, tensor.dtype
            assert found == (shape, device, dtype), f"{found} where a model has {shape}, {dtype}"
            return tensor

        return next_of


def holders_endpoint(worker: WorkerConfig) -> str:
    return f"ipc://{worker.execution.start}.holder-{worker.stage}"


def ask_for_weights(worker: WorkerConfig, share: Share, context: ZMQContext) -> Held | None:
    """Wait until the holder of this stage has its weights, and map them. None if it cannot keep
    them, which it has logged."""
    with context.socket(zmq.REQ) as socket:
        socket.connect(holders_endpoint(worker))
        socket.send(msgspec.msgpack.encode(share))
        answer = socket.recv()
    # From a socket in the private folder, where all of this process's orders come from.
    return pickle.loads(answer) if answer else None  # noqa: S301
