"""One of two pipeline stages that compute nothing, over the links that real stages use.

`python -m benchmarks.links.stage_hop CONFIG.json ROWS COUNT`: COUNT times, stage 0 sends hidden
states of ROWS tokens and waits for a token message from stage 1. Then it prints `Hops` as JSON.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
import zmq

from benchmarks.links.round_trips import Hops
from workers.contract.config import WorkerConfig
from workers.contract.messages import SampledTokens
from workers.contract.supervision import exit_with_parent
from workers.links.activations import ActivationReceiver, ActivationSender, PipelineError, connect
from workers.links.token_return import TokenReceiver, TokenSender

_CLOCK_BYTES = 8


def main() -> None:
    """The process."""
    exit_with_parent()
    file, rows, count = sys.argv[1:]
    config = msgspec.json.decode(Path(file).read_bytes(), type=WorkerConfig)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = config.execution.token_endpoint
    arriving = TokenReceiver(context, endpoint) if config.stage == 0 else None
    neighbours = connect(config, _fail)
    if arriving is not None and neighbours.next is not None:
        hidden = torch.zeros(int(rows), config.execution.model.hidden_size)
        hops = _send_all(neighbours.next, arriving, hidden, int(count))
        print(msgspec.json.encode(hops).decode(), flush=True)
    elif neighbours.previous is not None:
        returning = TokenSender(context, endpoint)
        _return_all(neighbours.previous, returning, int(rows), int(count))
    sys.stdin.read()


def _send_all(
    sender: ActivationSender, arriving: TokenReceiver, hidden: torch.Tensor, count: int
) -> Hops:
    hops = Hops([], [])
    for step in range(count):
        sent = time.monotonic_ns()
        sender.send(hidden)
        for message in arriving.receive(step):
            received = int.from_bytes(message.tokens, "little")
            hops.there.append((received - sent) / 1e3)
            hops.back.append((time.monotonic_ns() - received) / 1e3)
    return hops


def _return_all(
    receiver: ActivationReceiver, returning: TokenSender, rows: int, count: int
) -> None:
    for step in range(count):
        receiver.receive(rows)
        now = time.monotonic_ns().to_bytes(_CLOCK_BYTES, "little")
        returning.send(SampledTokens(step, b"", now))


def _fail(error: PipelineError) -> NoReturn:
    print(error, file=sys.stderr)
    os._exit(1)


if __name__ == "__main__":
    main()
