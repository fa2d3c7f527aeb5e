"""Where a captured step finds its tokens and rows: device memory that stays where it is."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from workers.device.transfer import stage
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable
from workers.step.tensors import IntArray, StepTensors

_BYTES = 32
"""Of each token: tokens, positions and slot_mapping int64, slots and context_lens int32."""

_LONGEST_SINGLE = 4096
"""Tokens. One such context of an 8B Llama, read by 8 programs of an H200, takes a millisecond of a
step more than by all; then the step is better launched in pieces."""


class StaticInputs:
    """The inputs of `size` tokens, views of one buffer, so that a step arrives in one copy.

    tokens, positions, slot_mapping  int64[size]; a token of -1 is the last one of its slot
    slots, context_lens              int32[size]; a token's context ends with itself

    rows      where the step is captured with the attention of its rows
    resolved  int64[size]: the tokens, those of -1 looked up; part of the captured step

    What a step does not fill belongs to nobody's slot, and its keys and values go to a place in the
    KV cache that nobody reads.
    """

    def __init__(
        self, size: int, slots: SlotTable, scratch_place: int, rows: "StaticRows | None" = None
    ) -> None:
        """`scratch_place` is that place: block * block_size. `rows` are not in use elsewhere."""
        self.size, self.rows = size, rows
        self._table = slots
        self._scratch_place = scratch_place
        device = slots.last_tokens.device
        total = size * _BYTES + (rows.nbytes if rows else 0)
        self._buffer = torch.zeros(total, dtype=torch.uint8, device=device)
        wide = self._buffer[: size * 24].view(torch.int64).view(3, size)
        narrow = self._buffer[size * 24 : size * _BYTES].view(torch.int32).view(2, size)
        self.tokens, self.positions, self.slot_mapping = wide
        self.slots, self.context_lens = narrow
        if rows:
            rows.live_in(self._buffer[size * _BYTES :])
        self.resolved = torch.zeros_like(self.tokens)
        nothing = np.zeros(0, np.int32)
        self.load(nothing, nothing, StepRows.none())

    def load(self, tokens: IntArray, slot_mapping: npt.NDArray[np.integer], rows: StepRows) -> None:
        """Queue the copy of a step's T <= size tokens, [T] each, and of its rows."""
        count = rows.total
        wide = np.zeros((3, self.size), np.int64)
        wide[0, :count], wide[1, :count] = tokens, rows.positions
        wide[2] = self._scratch_place
        wide[2, :count] = slot_mapping
        narrow = np.empty((2, self.size), np.int32)
        narrow[0] = self._table.padding_slot
        narrow[0, :count] = rows.token_slots
        narrow[1] = wide[1] + 1
        arrays = [wide, narrow]
        if self.rows:
            arrays.append(self.rows.laid_out(rows, self._table.padding_slot))
        self._buffer.copy_(stage(arrays), non_blocking=True)

    def hold(self, rows: StepRows) -> bool:
        """Whether there are places for these rows and their tokens."""
        return rows.total <= self.size and (self.rows is None or self.rows.hold(rows))

    def resolve_tokens(self) -> None:
        """Fill `resolved`. To be captured."""
        self._table.resolve(self.slots, self.tokens, self.resolved)

    def as_decode_step(self) -> StepTensors:
        """A step whose rows are these tokens, once resolved, one each. Its host-side lengths are
        made up: whoever is captured looks at the device's."""
        return StepTensors(
            tokens=self.resolved,
            positions=self.positions,
            token_types=None,
            slot_mapping=self.slot_mapping,
            block_tables=self._table.device_tables,
            slots=self.slots,
            query_starts=torch.arange(self.size + 1, dtype=torch.int32, device=self.slots.device),
            context_lens=self.context_lens,
            query_lens=np.ones(self.size, np.int32),
            contexts=np.ones(self.size, np.int32),
        )

    def as_step_of_rows(self) -> StepTensors:
        """A step of these tokens in `rows`. Host-side lengths are the most that there can be."""
        assert self.rows is not None, "captured with its attention"
        singles, chunks = self.rows.singles, self.rows.chunks
        return replace(
            self.as_decode_step(),
            slots=self.rows.slots,
            query_starts=self.rows.query_starts,
            context_lens=self.rows.context_lens,
            query_lens=np.repeat(np.array([1, self.size], np.int32), [singles, chunks]),
            contexts=np.full(singles + chunks, self.rows.longest_context, np.int32),
        )


class StaticRows:
    """Places for the rows of a step: `singles` for those of one token, which come first, and
    `chunks` for others.

    slots, context_lens  int32[singles + chunks]
    query_starts         int32[singles + chunks + 1]; a single row's is not read, it is its place

    In a place that a step leaves empty is nobody's row. A single one of these has no context: its
    place among the tokens is another's, or padding. One of the others has no query.

    Contexts of singles are split among as many programs as if all places were taken. For a few long
    ones that is too few: these are not held.
    """

    slots: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor

    def __init__(self, singles: int, chunks: int, longest_context: int) -> None:
        """No row's context is longer than `longest_context` tokens."""
        self.singles, self.chunks = singles, chunks
        self.longest_context = longest_context
        # Even, so that the three fill whole 8 bytes.
        self._width = (singles + chunks + 2) // 2 * 2

    @property
    def nbytes(self) -> int:
        """What they take of a buffer."""
        return 3 * self._width * 4

    def hold(self, rows: StepRows) -> bool:
        """Whether there are places for all of these."""
        singles = rows.singles
        return (
            singles <= self.singles
            and len(rows.slots) - singles <= self.chunks
            and rows.contexts[:singles].max(initial=0) <= _LONGEST_SINGLE
        )

    def live_in(self, buffer: torch.Tensor) -> None:
        """From now on these are views of `buffer`, uint8[nbytes]."""
        slots, lens, starts = buffer.view(torch.int32).view(3, self._width)
        count = self.singles + self.chunks
        self.slots, self.context_lens, self.query_starts = (
            slots[:count],
            lens[:count],
            starts[: count + 1],
        )

    def laid_out(self, rows: StepRows, padding_slot: int) -> IntArray:
        """What `buffer` is to hold, int32[3, width], for these rows."""
        places = np.ones((3, self._width), np.int32)
        singles = rows.singles
        places[0], places[1, singles : self.singles] = padding_slot, 0
        chunks = slice(self.singles, self.singles + len(rows.slots) - singles)
        for place, values in zip(places, (rows.slots, rows.contexts, rows.starts), strict=True):
            place[:singles], place[chunks] = values[:singles], values[singles : len(rows.slots)]
        places[2, chunks.stop :] = rows.total
        return places
