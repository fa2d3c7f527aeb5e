"""A decode step's message → the tensors that a stage runs, or a CUDA graph loaded with them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from workers.contract.messages import DecodeStep
from workers.graphs.captured_steps import FullGraph, PartialGraph
from workers.graphs.stage_graphs import StageGraphs
from workers.heads.requested_outputs import RequestedOutputs, requested_outputs
from workers.sampling.sampling_table import SamplingTable
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable


@dataclass(frozen=True)
class DecodeInput:
    """One step as a stage runs it. If a captured graph fits, `graph` is that one, with the step's
    inputs loaded, and T' is its size. `build_requested` is called once the layers are under way.
    `masked` is that of the message."""

    tensors: PagedStep
    masked: bytes
    graph: FullGraph | PartialGraph | None = None
    build_requested: Callable[[], RequestedOutputs] = RequestedOutputs

    @cached_property
    def requested(self) -> RequestedOutputs:
        """What the last stage's head computes. To be read before the next step is built."""
        return self.build_requested()

    def last_tokens(self) -> LastTokens | None:
        """The tokens whose final states the head reads, if these are fewer than the step's."""
        return self.requested.last_tokens


class DecodeInputBuilder:
    """Steps of rows that live in slots and keep their context in a paged cache.

    Only the first stage resolves tokens of -1; only the last has a head, which samples if there is
    a table of `sampling`.
    """

    graphs: StageGraphs | None = None
    """Those that were captured; a step that fits one is loaded into it."""

    def __init__(
        self, slots: SlotTable, sampling: SamplingTable | None, *, first: bool, last: bool
    ) -> None:
        self._slots, self._sampling = slots, sampling
        self._first, self._last = first, last

    def build(self, message: DecodeStep) -> DecodeInput:
        """Apply the message's slot changes and make the step's tensors on the device. Tokens of -1
        are not looked up yet: they may still be on their way."""
        self._slots.update(message.block_updates)
        rows = StepRows.of(message)
        tokens = np.frombuffer(message.tokens, np.int32)
        graph = self.graphs.select(rows) if self.graphs else None
        if graph is None:
            step = PagedStep.of(rows, tokens, self._slots, look_up=self._first)
        else:
            graph.inputs.load(tokens, self._slots.kv_indices(rows), rows)
            step = graph.step if isinstance(graph, FullGraph) else graph.inputs.as_step(rows)
        if not self._last:
            return DecodeInput(step, message.masked, graph)
        if self._sampling is not None:
            self._sampling.update(message.inits)
        all_states, table = isinstance(graph, FullGraph), self._sampling
        build = partial(requested_outputs, message, rows, step, table, all_states=all_states)
        return DecodeInput(step, message.masked, graph, build)
