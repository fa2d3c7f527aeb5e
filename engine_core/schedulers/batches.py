"""The rows of one step, chosen by a scheduler."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from engine_core.loop.jobs import Job
from engine_core.loop.reports import StepWork
from engine_core.schedulers.encoder_rows import EncoderRows
from engine_core.schedulers.request import Request
from workers.contract.messages import DecodeStep, EncodeStep, SlotInit
from workers.contract.model_config import TokenOutput

_FROM_SLOT = array("i", [-1])
_NO_TARGET = -1


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """One step's rows: request, first position, number of positions, whether the last is sampled.

    scored       by row: the positions whose next prompt token gets its log-probability
    begun        jobs of the rows that begin, or begin again
    updates      new block-table entries, flat (slot, index, block)
    copies       blocks that are copied first, flat (from, to)
    sources      those of them that are held until the step is built
    after        the newest step whose sampled token a row takes as input
    num_decodes  how many decode rows there are: they come first
    contexts, attended  as in `StepWork`
    """

    step: int
    requests: list[Request] = field(default_factory=list[Request])
    starts: list[int] = field(default_factory=list[int])
    lens: list[int] = field(default_factory=list[int])
    samples: list[bool] = field(default_factory=list[bool])
    scored: dict[int, range] = field(default_factory=dict[int, range])
    inits: list[SlotInit] = field(default_factory=list[SlotInit])
    begun: list[Job] = field(default_factory=list[Job])
    updates: list[int] = field(default_factory=list[int])
    copies: list[int] = field(default_factory=list[int])
    sources: list[int] = field(default_factory=list[int])
    after: int = -1
    num_tokens: int = 0
    num_decodes: int = 0
    contexts: int = 0
    attended: float = 0.0

    def add(self, request: Request, start: int, length: int, samples: bool) -> None:
        """Submit positions [start, start + length) of a request."""
        if targets := request.targets_in(start, start + length):
            self.scored[len(self.requests)] = targets
        self.requests.append(request)
        self.starts.append(start)
        self.lens.append(length)
        self.samples.append(samples)
        self.num_tokens += length
        self.attended += length * (start + length / 2)
        request.submitted = start + length
        request.in_flight += 1
        if start + length > request.resident_from:
            self.after = max(self.after, request.last_step)
        if samples:
            request.unresolved += 1
            request.last_step = self.step

    def add_decodes(self, requests: list[Request]) -> None:
        """Begin the step with the next position of each. As `add`, in a third of the time."""
        step, starts = self.step, self.starts
        self.after = max([request.last_step for request in requests], default=self.after)
        for request in requests:
            position = request.submitted
            starts.append(position)
            request.submitted = position + 1
            request.in_flight += 1
            request.unresolved += 1
            request.last_step = step
        count = len(requests)
        self.num_decodes += count
        self.num_tokens += count
        self.contexts += sum(starts) + count
        self.requests += requests
        self.lens += [1] * count
        self.samples += [True] * count

    @property
    def work(self) -> StepWork:
        return StepWork(self.num_tokens, self.attended, self.contexts)

    @property
    def jobs(self) -> list[Job]:
        return [request.job for request in self.requests]

    def message(self, masked: bytes, groups: Sequence[int]) -> DecodeStep:
        """Build the step's message with its `masked` and `groups`."""
        return DecodeStep(
            step=self.step,
            tokens=self._tokens(),
            query_lens=_int32(self.lens),
            slots=_int32([request.slot for request in self.requests]),
            starts=_int32(self.starts),
            sample=bytes(self.samples),
            block_updates=_int32(self.updates),
            block_copies=_int32(self.copies),
            groups=_int32(groups),
            inits=self.inits,
            after=self.after,
            targets=self._targets(),
            masked=masked,
        )

    def _tokens(self) -> bytes:
        """The tokens of all rows, -1 for one that is sampled in its slot."""
        decodes = self.num_decodes
        chunks = [
            _FROM_SLOT if start >= request.resident_from else request.tokens[start : start + length]
            for request, start, length in zip(
                self.requests[decodes:], self.starts[decodes:], self.lens[decodes:], strict=True
            )
        ]
        return b"".join([_FROM_SLOT.tobytes() * decodes, *chunks])

    def _targets(self) -> bytes:
        """The prompt token after each scored position. Empty if none is scored."""
        if not self.scored:
            return b""
        targets = np.full(self.num_tokens, _NO_TARGET, np.int32)
        offsets = list(accumulate(self.lens, initial=0))
        for row, scored in self.scored.items():
            first = offsets[row] + scored.start - self.starts[row]
            following = self.requests[row].tokens[scored.start + 1 : scored.stop + 1]
            targets[first : first + len(scored)] = following
        return targets.tobytes()


@dataclass(slots=True, eq=False)
class EncodeBatch:
    """One step's rows of prefill-only jobs.

    lens          int32[R]
    parts         the rows' jobs, each with the numbers of its rows, in batch order
    sources       all rows of each of these jobs
    requested     uint8[R] for each output of tokens that is requested, 1 for the rows that do
    """

    message: EncodeStep
    lens: npt.NDArray[np.int32]
    parts: list[tuple[Job, range]]
    sources: list[EncoderRows]
    requested: Mapping[TokenOutput, npt.NDArray[np.uint8]]

    @property
    def step(self) -> int:
        return self.message.step

    @property
    def work(self) -> StepWork:
        return encode_work(self.lens)

    @property
    def jobs(self) -> list[Job]:
        return [job for job, _ in self.parts]

    @property
    def begun(self) -> list[Job]:
        return self.jobs


def encode_work(lens: npt.NDArray[np.int32]) -> StepWork:
    """The work of a step of whole rows: a token attends to all of its row."""
    return StepWork(int(lens.sum()), float(np.square(lens, dtype=np.float64).sum()))


def _int32(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()
