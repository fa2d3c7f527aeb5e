"""Hidden states and tokens between stages on GPUs of one host: written into the peer's memory.

A stage owns a ring of slots, as many as steps may ever be in flight. The stage before copies the
states of step s into slot s mod ring, then writes a counter of steps. Both are queued on streams,
so no CPU and no kernel waits. Nothing is sent back. A slot is written again `max_depth` steps
later, and that step is submitted only once the earlier one has left the last stage.

The first stage's memory also holds the newest token of every slot, which the last stage writes only
after the first has run the step that reads the one before. A wasted row (submitted ahead for a
request that had ended) writes its token too: the slot's next owner overwrites it before it is read.
"""

# torch leaves the types of symmetric memory open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import ctypes
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.process import NO_MULTICAST
from workers.layers.layer import TORCH_DTYPES
from workers.links.transport import Links

_DRIVER = "libcuda.so.1"
_FLAGS = 0
"""CU_STREAM_WAIT_VALUE_GEQ and CU_STREAM_WRITE_VALUE_DEFAULT. A wait is for a value that is greater
or equal, and a memory barrier precedes a write."""

_HAS_64_BIT_OPERATIONS = 122  # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS


class StreamCounter:
    """An unsigned number of 64 bits in device memory that only rises, in stream order.

    It is written and awaited by the driver's stream memory operations (CUDA driver API, "Stream
    Memory Operations"). Unlike a kernel that spins, a wait occupies no processor of the GPU.
    Another GPU may write the value.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        """`memory` uint8[8], on this device or in a peer's memory."""
        self._driver = ctypes.CDLL(_DRIVER)
        self._address = ctypes.c_uint64(memory.data_ptr())
        self._memory = memory  # must outlive the operations

    def write(self, value: int) -> None:
        """Set it once all work that the current stream has been given is done and visible."""
        self._call("cuStreamWriteValue64_v2", value)

    def wait(self, value: int) -> None:
        """Work that the current stream is given later begins once the counter is `value` or
        more."""
        self._call("cuStreamWaitValue64_v2", value)

    def _call(self, name: str, value: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = getattr(self._driver, name)(stream, self._address, ctypes.c_uint64(value), _FLAGS)
        if error:
            raise RuntimeError(f"{name} failed with CUDA error {error}")


def has_stream_counters(device: torch.device) -> bool:
    """Whether streams of this GPU can write and wait for 64-bit values."""
    driver, found = ctypes.CDLL(_DRIVER), ctypes.c_int()
    error = driver.cuDeviceGetAttribute(
        ctypes.byref(found), _HAS_64_BIT_OPERATIONS, device.index or 0
    )
    return not error and bool(found.value)


class SymmetricMemory:
    """A part of `nbytes` on the GPU of each stage of a group, zero at first, which all of them can
    read and write.

    It exists as long as this object. Torch may change the interface: a test checks every name that
    is used, and where one is missing the stages take another transport.
    """

    def __init__(self, nbytes: int, device: torch.device, group: dist.ProcessGroup) -> None:
        """Every member of the group must call this, and waits for the others. Raises RuntimeError
        where multicast is not switched off."""
        for name, value in NO_MULTICAST.items():
            if os.environ.get(name) != value:
                raise RuntimeError(f"{name} is not {value}: multicast could harm the host")
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

        self._own = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        self._own.zero_()
        # Nobody writes to another stage's part before all parts are zero.
        torch.cuda.synchronize()
        self._handle = symmetric.rendezvous(self._own, group)
        self._nbytes = nbytes

    def of(self, rank: int) -> torch.Tensor:
        """The part of a member, uint8[nbytes], as a tensor of this stage's device."""
        return self._handle.get_buffer(rank, (self._nbytes,), torch.uint8)


def has_symmetric_memory() -> bool:
    """Whether this torch has every name that is used here."""
    try:
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415
    except ImportError:
        return False
    return hasattr(symmetric, "empty") and hasattr(symmetric, "rendezvous")


_ALIGNMENT = 256
"""Bytes. The two counters share no cache line with each other or with what they announce."""

_TEST_STEP = -1
"""The number under which one row passes every edge when the stages connect."""


@dataclass(frozen=True, slots=True)
class PeerLayout:
    """The layout of each stage's memory: two counters, the tokens, the ring.

    One counter is of the steps whose states have arrived, the other of those whose tokens have.
    """

    num_slots: int
    step_tokens: int
    state_size: int
    dtype: torch.dtype
    num_tokens: int

    @classmethod
    def of(cls, config: ExecutionConfig) -> "PeerLayout":
        return cls(
            num_slots=config.max_depth,
            step_tokens=config.largest_step_tokens,
            state_size=config.model.state_size,
            dtype=TORCH_DTYPES[config.dtype],
            num_tokens=config.max_running + 1,
        )

    @property
    def nbytes(self) -> int:
        return self._ring_start + self.num_slots * self._slot_bytes

    def arrivals(self, memory: torch.Tensor) -> StreamCounter:
        return StreamCounter(memory[:8])

    def token_arrivals(self, memory: torch.Tensor) -> StreamCounter:
        return StreamCounter(memory[_ALIGNMENT : _ALIGNMENT + 8])

    def last_tokens(self, memory: torch.Tensor) -> torch.Tensor:
        """int64[max_running + 1]"""
        start = 2 * _ALIGNMENT
        return memory[start : start + 8 * self.num_tokens].view(torch.int64)

    def states(self, memory: torch.Tensor, step: int, num_tokens: int) -> torch.Tensor:
        """[num_tokens, state_size]: the first rows of the step's slot. Raises ValueError for more
        than a slot has."""
        if num_tokens > self.step_tokens:
            raise ValueError(f"a step of {num_tokens} tokens in a slot for {self.step_tokens}")
        start = self._ring_start + step % self.num_slots * self._slot_bytes
        nbytes = num_tokens * self.state_size * self.dtype.itemsize
        return memory[start : start + nbytes].view(self.dtype).view(num_tokens, -1)

    @property
    def _ring_start(self) -> int:
        return 2 * _ALIGNMENT + _aligned(8 * self.num_tokens)

    @property
    def _slot_bytes(self) -> int:
        return _aligned(self.step_tokens * self.state_size * self.dtype.itemsize)


class PeerReceiver:
    """See `ActivationReceiver`. The states are valid until `num_slots` steps later."""

    def __init__(self, layout: PeerLayout, memory: SymmetricMemory, rank: int) -> None:
        self._layout, self._memory, self._part = layout, memory, memory.of(rank)
        self._arrivals = layout.arrivals(self._part)

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        self._arrivals.wait(_count(step))
        return self._layout.states(self._part, step, num_tokens)


class PeerSender:
    """See `ActivationSender`. States that nothing overwrites are copied beside later work."""

    def __init__(self, layout: PeerLayout, memory: SymmetricMemory, rank: int) -> None:
        self._layout, self._memory, self._part = layout, memory, memory.of(rank)
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
    """Whether this stage's GPU can write to the memory of every GPU of the stages on this host.
    Symmetric memory maps all of it, whoever writes there."""
    own = torch.device(worker.local_device)
    if not (has_symmetric_memory() and has_stream_counters(own)):
        return False
    peers = {torch.device("cuda", index) for index in range(len(worker.gpus))} - {own}
    return all(torch.cuda.can_device_access_peer(own, peer) for peer in peers)


def connect_peer_memory(worker: WorkerConfig, group: dist.ProcessGroup) -> Links:
    """Connect this stage to its neighbours on this host by shared memory.

    Every stage of the host must call this with the `group` of them. One row is sent over every
    edge. Tokens return the same way where these are all stages.
    """
    config, beside, device = worker.execution, worker.beside, torch.device(worker.local_device)
    layout, rank = PeerLayout.of(config), beside.index(worker.stage)
    memory = SymmetricMemory(layout.nbytes, device, group)
    previous = next_stage = tokens = None
    if rank < len(beside) - 1:
        next_stage = PeerSender(layout, memory, rank + 1)
        row = torch.zeros(1, layout.state_size, dtype=layout.dtype, device=device)
        next_stage.send(_TEST_STEP, row, reused=False)
    if rank > 0:
        previous = PeerReceiver(layout, memory, rank)
        previous.receive(_TEST_STEP, 1)
    whole = len(beside) == config.num_stages
    if whole and config.task == "generate" and rank in (0, len(beside) - 1):
        tokens = PeerTokens(layout, memory)
    torch.cuda.synchronize()
    return Links(previous, next_stage, tokens, layout.nbytes)


def _count(step: int) -> int:
    """A counter's value once `step` has arrived: above 0 for the test step too."""
    return step + 2


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
