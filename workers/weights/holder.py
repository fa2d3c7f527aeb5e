"""`python -P -m workers.weights.holder CONFIG.json [RESTARTS]`: keeps the weights of one stage.

A GPU's memory goes with the process that allocated it. This one loads the weights, and computes
nothing that could kill it. The stage maps its memory (CUDA IPC, through torch), and so does the
next one, if that is lost. On a CPU weights are shared memory likewise: only tests do that, for a
checkpoint's files are in the page cache anyway.
"""

import logging
import os
import signal
import sys
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
import zmq

from workers.contract.config import WorkerConfig
from workers.contract.process import exit_with_parent, open_log
from workers.contract.share import Share
from workers.weights.held import Held, holders_endpoint
from workers.weights.loader import filled_model

_logger = logging.getLogger(__name__)


class Holder:
    """The weights of a stage, once they are asked for."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._worker = worker
        self._kept: tuple[Share, Held] | None = None

    def answer(self, share: Share) -> bytes:
        """Handles of the weights of `share`, for `ask_for_weights`. Empty where they cannot be
        loaded or shared: the stage then loads them itself, and says what is wrong with them."""
        try:
            if self._kept is None:
                self._kept = share, self._loaded(share)
            kept, held = self._kept
            assert kept == share, "a core's stages keep their shares, and holders end with the core"
            handles = bytes(ForkingPickler.dumps(held))
            self._kept = kept, held._replace(seconds=0.0)
        except Exception as error:
            line = " ".join(str(error).split())
            _logger.warning("keeps no weights, and the stage loads its own: %s", line)
            self._kept, handles = None, b""
        if self._kept is None:
            torch.cuda.empty_cache()
        _unlink_counters()
        return handles

    def _loaded(self, share: Share) -> Held:
        start, made = time.monotonic(), list[torch.Tensor]()

        def noted(
            shape: tuple[int, ...], /, *, device: torch.device, dtype: torch.dtype
        ) -> torch.Tensor:
            made.append(torch.empty(shape, device=device, dtype=dtype))
            return made[-1]

        with torch.inference_mode():
            filled_model(self._worker, share, noted)
        torch.cuda.empty_cache()
        return Held(made, torch.cuda.memory_reserved(), time.monotonic() - start)


def _unlink_counters() -> None:
    """Unlink the files in which torch counts who has a CUDA tensor. They would outlive this
    process, which nobody ends in order. Nobody misses them: nothing is ever freed."""
    for file in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"):  # noqa: S108
        file.unlink(missing_ok=True)


def serve(worker: WorkerConfig) -> NoReturn:
    """Keep the weights of a stage until this process is killed."""
    if worker.execution.device_type == "cuda":
        torch.cuda.set_device(worker.local_device)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.REP)
    socket.bind(holders_endpoint(worker))
    holder, shares = Holder(worker), msgspec.msgpack.Decoder(Share)
    while True:
        socket.send(holder.answer(shares.decode(socket.recv())))


def main() -> NoReturn:
    """Keep the weights of the stage that the file named on the command line describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    worker = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=WorkerConfig)
    execution = worker.execution
    open_log(f"holder {worker.stage} of {execution.engine_name}", execution.log_level)
    torch.set_num_threads(execution.threads)
    serve(worker)


if __name__ == "__main__":
    main()
