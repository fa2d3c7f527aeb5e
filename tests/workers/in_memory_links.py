"""Links between stages that are objects of one process, each on a CUDA stream of its own.

The fourth transport, beside gloo, peer memory and NCCL, for tests alone: it orders two streams by
CUDA events as peer memory orders two GPUs by counters. On a CPU there is nothing to order.
"""

from typing import Literal

import torch

from workers.links.transport import Links

Fault = Literal["not copied", "not waited for"]

_LONG = 20_000_000
"""Cycles, about ten milliseconds: a receiver that does not wait reads the ring too early."""


class InMemoryEdge:
    """Both ends of an edge: a ring of slots, as in peer memory."""

    def __init__(self, ring: torch.Tensor, fault: Fault | None = None) -> None:
        """`ring` [slots, N, hidden_size] has room for the largest step."""
        self._ring, self._fault = ring, fault
        self._sent: dict[int, tuple[torch.Tensor, torch.cuda.Event | None]] = {}

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        del reused
        if self._fault == "not waited for":
            torch.cuda._sleep(_LONG)
        slot = hidden
        if self._fault != "not copied":
            slot = self._ring[step % len(self._ring), : len(hidden)]
            slot.copy_(hidden)
        self._sent[step] = slot, mark(hidden.device)

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        hidden, sent = self._sent.pop(step)
        if self._fault != "not waited for":
            wait_for(sent)
        assert len(hidden) == num_tokens, "the step's own rows, whatever a stage pads or captures"
        return hidden


class InMemoryTokens:
    """See `TokenMemory`."""

    def __init__(self, last_tokens: torch.Tensor) -> None:
        self.last_tokens = last_tokens
        self._announced: dict[int, torch.cuda.Event | None] = {}

    def announce(self, step: int) -> None:
        self._announced[step] = mark(self.last_tokens.device)

    def wait_for(self, step: int) -> None:
        if step >= 0:
            wait_for(self._announced[step])


def mark(device: torch.device) -> torch.cuda.Event | None:
    """This moment in the current stream; None on a CPU."""
    if device.type == "cpu":
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def wait_for(event: torch.cuda.Event | None) -> None:
    """The current stream waits for a moment of another."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


def in_memory_links(
    num_stages: int, ring_like: torch.Tensor, last_tokens: torch.Tensor, fault: Fault | None = None
) -> list[Links]:
    """The links of each stage. `ring_like` [slots, N, hidden_size] is for one edge, `last_tokens`
    int64[max_running + 1] for the tokens."""
    if num_stages == 1:
        return [Links()]
    edges = [InMemoryEdge(torch.zeros_like(ring_like), fault) for _ in range(num_stages - 1)]
    tokens = InMemoryTokens(last_tokens)
    ends = (0, num_stages - 1)
    return [
        Links(previous, following, tokens if stage in ends else None)
        for stage, (previous, following) in enumerate(
            zip([None, *edges], [*edges, None], strict=True)
        )
    ]
