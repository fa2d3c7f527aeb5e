"""The stages of a decoder in one process, one stream each: every step runs as in worker processes,
and later stages always lag a step behind the first."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from tests.workers.checkpoints import load_share
from workers.attention.backend_selection import select_backends
from workers.contract.config import WorkerConfig
from workers.contract.messages import DecodeStep, StepMask
from workers.device.choices import Choices
from workers.heads.base import HeadResult
from workers.layers.layer import TORCH_DTYPES
from workers.links.engine_link import StepInbox
from workers.links.transport import Links
from workers.stage.decode_runner import DecodeInput, DecodeRunner
from workers.stage.model_runner import attention_needs
from workers.stage.stage import ResultSender, Stage, recorded_event

Fault = Literal["not copied", "not waited for"]

_LONG = 20_000_000
"""Cycles, about ten milliseconds: a receiver that does not wait reads the ring too early."""


class InMemoryEdge:
    """Both ends of an edge: a ring of slots, as in peer memory."""

    def __init__(self, ring: torch.Tensor, fault: Fault | None = None) -> None:
        """`ring` [slots, N, state_size] has room for the largest step."""
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
    """The links of each stage. `ring_like` [slots, N, state_size] is for one edge, `last_tokens`
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


class Result(NamedTuple):
    """What the last stage made of a step, on the host once `copied` is done."""

    result: HeadResult
    copied: torch.cuda.Event | None


class _Results(ResultSender):
    def __init__(self, device: torch.device) -> None:
        if device.type != "cpu":
            self.moment = recorded_event
        self.kept: dict[int, Result] = {}
        self._device = device

    def send(self, step: int, result: HeadResult | None, marks: Sequence[Any]) -> None:
        if result is not None:
            self.kept[step] = Result(result.to_host(), mark(self._device))


class CountingRunner(DecodeRunner):
    replayed = 0

    def forward(self, batch: DecodeInput, hidden: torch.Tensor | None) -> torch.Tensor:
        self.replayed += batch.graph is not None
        return super().forward(batch, hidden)


class _NoMasks(StepInbox):
    def __init__(self) -> None:
        """Without a link to an engine core."""

    def take_mask(self, step: int) -> StepMask:
        raise AssertionError(f"step {step} has no row with a grammar")


class InlinePipeline:
    def __init__(
        self, configs: list[WorkerConfig], num_blocks: int, fault: Fault | None = None
    ) -> None:
        execution = configs[0].execution
        device = torch.device(configs[0].local_device)
        shape = (execution.max_depth, execution.max_step_tokens, execution.model.state_size)
        ring = torch.zeros(shape, dtype=TORCH_DTYPES[execution.dtype], device=device)
        last_tokens = torch.zeros(execution.max_running + 1, dtype=torch.int64, device=device)
        links = in_memory_links(len(configs), ring, last_tokens, fault)
        self.runners = [stage_runner(config, num_blocks, last_tokens) for config in configs]
        self._results = [_Results(device) for _ in configs]
        self._stages = [
            Stage(*parts, _NoMasks())
            for parts in zip(self.runners, links, self._results, strict=True)
        ]
        several = device.type == "cuda" and len(configs) > 1
        self._streams = [torch.cuda.Stream() if several else None for _ in configs]
        self._behind: list[deque[DecodeStep]] = [deque() for _ in configs]

    def warm_up(self) -> None:
        """Each stage alone, and then nothing is left to do on the device."""
        for runner, stream in zip(self.runners, self._streams, strict=True):
            with torch.cuda.stream(stream):
                runner.warm_up()
        if self._streams[0] is not None:
            torch.cuda.synchronize()

    def launch(self, message: DecodeStep) -> None:
        """Run a step on the first stage, and the one before on the others."""
        self._catch_up(message.after)
        self._run(0, message)
        for behind in self._behind[1:]:
            behind.append(message)
        self._catch_up(message.step - 1)

    def result(self, step: int) -> Result:
        self._catch_up(step)
        return self._results[-1].kept.pop(step)

    @property
    def graph_steps(self) -> int:
        """How many steps every stage replayed, at least."""
        return min(runner.replayed for runner in self.runners)

    def store_last_tokens(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """The slots go on with these tokens, int32[S] each. Nothing may be in flight."""
        with torch.cuda.stream(self._streams[0]):
            self.runners[0].slots.store_sampled(slots, tokens)

    def _catch_up(self, step: int) -> None:
        for stage, behind in enumerate(self._behind):
            while behind and behind[0].step <= step:
                self._run(stage, behind.popleft())

    def _run(self, stage: int, message: DecodeStep) -> None:
        with torch.cuda.stream(self._streams[stage]):
            self._stages[stage].run(message)


def stage_runner(
    config: WorkerConfig, num_blocks: int, last_tokens: torch.Tensor | None = None
) -> CountingRunner:
    """A runner with its weights; nothing is warm and nothing captured."""
    backends = select_backends(
        config.execution.attention_backend, attention_needs(config.execution), Choices()
    )
    with torch.inference_mode():
        return CountingRunner(config, load_share(config), backends, num_blocks, last_tokens)
