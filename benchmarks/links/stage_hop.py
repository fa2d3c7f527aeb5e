"""One of two pipeline stages that compute nothing, over the links that real stages use.

`python -m benchmarks.links.stage_hop CONFIG.json ROWS COUNT`: COUNT times, stage 0 sends hidden
states of ROWS tokens and waits for a token message from stage 1. Then it prints `Hops` as JSON.
"""

import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
import zmq

from benchmarks.links.round_trips import Hops
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep, GenerateOutput
from workers.contract.process import end_with_threads, exit_with_parent
from workers.links.engine_link import TokenReceiver, TokenSender
from workers.links.transport import ActivationReceiver, ActivationSender, connect
from workers.step.rows import IntArray

_CLOCK_TOKENS = 2
"""int32 tokens that hold a clock's value."""


def main() -> None:
    """The process."""
    exit_with_parent()
    end_with_threads()
    file, rows, count = sys.argv[1:]
    config = msgspec.json.decode(Path(file).read_bytes(), type=WorkerConfig)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    links = connect(config, context)
    if links.next is not None:
        hidden = torch.zeros(int(rows), config.execution.model.hidden_size)
        hops = _FirstStage(context, config.execution, links.next).send_all(hidden, int(count))
        print(msgspec.json.encode(hops).decode(), flush=True)
    elif links.previous is not None:
        returning = TokenSender(context, config.execution)
        _return_all(links.previous, returning, int(rows), int(count))
    sys.stdin.read()


class _FirstStage:
    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: ExecutionConfig,
        sender: ActivationSender,
    ) -> None:
        self._arriving = TokenReceiver(context, config, self._store)
        self._sender = sender
        self._sent = 0
        self._hops = Hops([], [])

    def send_all(self, hidden: torch.Tensor, count: int) -> Hops:
        self._arriving.prepare(_step(0))
        for step in range(count):
            self._sent = time.monotonic_ns()
            self._sender.send(step, hidden, reused=False)
            self._arriving.prepare(_step(step + 1))
        return self._hops

    def _store(self, slots: IntArray, tokens: IntArray) -> None:
        del slots
        received = int.from_bytes(tokens.tobytes(), "little")
        self._hops.there.append((received - self._sent) / 1e3)
        self._hops.back.append((time.monotonic_ns() - received) / 1e3)


def _step(number: int) -> DecodeStep:
    """A step that waits for the tokens of the one before."""
    return DecodeStep(
        step=number,
        tokens=b"",
        query_lens=b"",
        slots=np.arange(_CLOCK_TOKENS, dtype=np.int32).tobytes(),
        starts=b"",
        sample=b"\1" * _CLOCK_TOKENS,
        after=number - 1,
    )


def _return_all(
    receiver: ActivationReceiver, returning: TokenSender, rows: int, count: int
) -> None:
    for step in range(count):
        receiver.receive(step, rows)
        now = time.monotonic_ns().to_bytes(4 * _CLOCK_TOKENS, "little")
        returning.send(GenerateOutput(step, tokens=now))


if __name__ == "__main__":
    main()
