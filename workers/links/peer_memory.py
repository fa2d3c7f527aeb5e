"""Hidden states and tokens between stages on GPUs of one host: written into the peer's memory.

A stage owns a ring of slots, as many as steps may ever be in flight. The stage before copies the
states of step s into slot s mod ring, then writes a counter of steps; both are queued on streams,
so no CPU and no kernel waits. Nothing is sent back: when a slot is written
again, `max_depth` steps later, its step has left the last stage, or that later step would not have
been submitted.

The first stage's memory also holds the newest token of every slot, which the last stage writes.
A slot's next token is written only after the first stage has run the step that reads the last one.
A step that was submitted ahead for a request that had ended (a wasted row) still writes its token;
the slot's next owner samples in a later step, so its own token overwrites that one before the first
stage reads it.
"""

from dataclasses import dataclass

import torch

from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.links.stream_counters import StreamCounter, has_stream_counters
from workers.links.symmetric_memory import SymmetricMemory, has_symmetric_memory
from workers.links.transport import Links
from workers.weights.loader import TORCH_DTYPES

_ALIGNMENT = 256
"""Bytes. The two counters share no cache line with each other or with what they announce."""

_TEST_STEP = -1
"""The number under which one row passes every edge when the stages connect."""


@dataclass(frozen=True, slots=True)
class PeerLayout:
    """What lies where in each stage's memory: the counter of arrived steps, the counter of steps
    whose tokens are there, the tokens, the ring."""

    num_slots: int
    step_tokens: int
    hidden_size: int
    dtype: torch.dtype
    num_tokens: int

    @classmethod
    def of(cls, config: ExecutionConfig) -> "PeerLayout":
        """For a model."""
        return cls(
            num_slots=config.max_depth,
            step_tokens=config.largest_step_tokens,
            hidden_size=config.model.hidden_size,
            dtype=TORCH_DTYPES[config.dtype],
            num_tokens=config.max_running + 1,
        )

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return self._ring_start + self.num_slots * self._slot_bytes

    def arrivals(self, memory: torch.Tensor) -> StreamCounter:
        """The counter of the steps whose states are in the ring."""
        return StreamCounter(memory[:8])

    def token_arrivals(self, memory: torch.Tensor) -> StreamCounter:
        """The counter of the steps whose tokens are in `last_tokens`."""
        return StreamCounter(memory[_ALIGNMENT : _ALIGNMENT + 8])

    def last_tokens(self, memory: torch.Tensor) -> torch.Tensor:
        """int64[max_running + 1]"""
        start = 2 * _ALIGNMENT
        return memory[start : start + 8 * self.num_tokens].view(torch.int64)

    def states(self, memory: torch.Tensor, step: int, num_tokens: int) -> torch.Tensor:
        """[num_tokens, hidden_size]: the first rows of the step's slot. Raises ValueError for more
        than a slot has."""
        if num_tokens > self.step_tokens:
            raise ValueError(f"a step of {num_tokens} tokens in a slot for {self.step_tokens}")
        start = self._ring_start + step % self.num_slots * self._slot_bytes
        nbytes = num_tokens * self.hidden_size * self.dtype.itemsize
        return memory[start : start + nbytes].view(self.dtype).view(num_tokens, -1)

    @property
    def _ring_start(self) -> int:
        return 2 * _ALIGNMENT + _aligned(8 * self.num_tokens)

    @property
    def _slot_bytes(self) -> int:
        return _aligned(self.step_tokens * self.hidden_size * self.dtype.itemsize)


class PeerReceiver:
    """See `ActivationReceiver`. The states are valid until `num_slots` steps later."""

    def __init__(self, layout: PeerLayout, memory: SymmetricMemory, stage: int) -> None:
        """`stage` is this one."""
        self._layout, self._memory, self._part = layout, memory, memory.of(stage)
        self._arrivals = layout.arrivals(self._part)

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        self._arrivals.wait(_count(step))
        return self._layout.states(self._part, step, num_tokens)


class PeerSender:
    """See `ActivationSender`. States that nothing overwrites are copied beside later work."""

    def __init__(self, layout: PeerLayout, memory: SymmetricMemory, stage: int) -> None:
        """`stage` is the next one."""
        self._layout, self._memory, self._part = layout, memory, memory.of(stage)
        self._arrivals = layout.arrivals(self._part)
        self._beside = torch.cuda.Stream()

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        current = torch.cuda.current_stream()
        if reused:
            # The counter only rises: steps before this one must have been copied.
            current.wait_stream(self._beside)
            self._copy(step, hidden)
            return
        self._beside.wait_stream(current)
        with torch.cuda.stream(self._beside):
            self._copy(step, hidden)
        hidden.record_stream(self._beside)

    def _copy(self, step: int, hidden: torch.Tensor) -> None:
        """In the current stream."""
        self._layout.states(self._part, step, len(hidden)).copy_(hidden)
        self._arrivals.write(_count(step))


class PeerTokens:
    """See `TokenMemory`."""

    def __init__(self, layout: PeerLayout, memory: SymmetricMemory) -> None:
        self._memory, first = memory, memory.of(0)
        self.last_tokens = layout.last_tokens(first)
        self._arrivals = layout.token_arrivals(first)

    def announce(self, step: int) -> None:
        self._arrivals.write(_count(step))

    def wait_for(self, step: int) -> None:
        if step >= 0:
            self._arrivals.wait(_count(step))


def reaches_peers(worker: WorkerConfig) -> bool:
    """Whether this stage's GPU can write to the memory of every other stage's: symmetric memory
    maps all of it, whoever writes there."""
    config, own = worker.execution, torch.device(worker.local_device)
    if not (has_symmetric_memory() and has_stream_counters(own)):
        return False
    stages = (WorkerConfig(execution=config, stage=stage) for stage in range(config.num_stages))
    peers = {torch.device(stage.local_device) for stage in stages} - {own}
    return all(torch.cuda.can_device_access_peer(own, peer) for peer in peers)


def connect_peer_memory(worker: WorkerConfig) -> Links:
    """Connect this stage, a member of `process_groups.joined`, to its neighbours, and send one row
    over every edge. Every stage must call this. Raises SymmetricMemoryError."""
    config, stage, device = worker.execution, worker.stage, torch.device(worker.local_device)
    layout = PeerLayout.of(config)
    memory = SymmetricMemory(layout.nbytes, device)
    previous = next_stage = tokens = None
    if stage < config.num_stages - 1:
        next_stage = PeerSender(layout, memory, stage + 1)
        row = torch.zeros(1, layout.hidden_size, dtype=layout.dtype, device=device)
        next_stage.send(_TEST_STEP, row, reused=False)
    if stage > 0:
        previous = PeerReceiver(layout, memory, stage)
        previous.receive(_TEST_STEP, 1)
    if config.task == "generate" and stage in (0, config.num_stages - 1):
        tokens = PeerTokens(layout, memory)
    torch.cuda.synchronize()
    return Links(previous, next_stage, tokens)


def _count(step: int) -> int:
    """A counter's value once `step` has arrived: above 0 for the test step too."""
    return step + 2


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
