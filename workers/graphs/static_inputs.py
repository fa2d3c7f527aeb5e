"""The inputs of captured steps: device memory at fixed addresses, loaded before each replay."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.prefix_tiles import TILE_NUMBERS, PrefixTables, PrefixTiler
from workers.device.transfer import pin, to_device
from workers.device.tuning import MIXED_GRAPH_MAX_CONTEXT
from workers.step.paged_step import AllTables, PagedStep, PrefixTensors
from workers.step.rows import IntArray, StepRows, leading_decode_rows
from workers.step.slot_table import SlotTable


class StaticPrefixes:
    """Room for any groups of a captured step of `size` rows of one token. The rest is zero: tiles
    of no tokens, rows without a prefix."""

    def __init__(self, size: int, tiler: PrefixTiler) -> None:
        self._size, self._tiler = size, tiler
        self._tiles, self._parts = tiler.most_tiles(size), tiler.most_parts(size)
        self._planned: tuple[StepRows, PrefixTables | None] | None = None

    @property
    def nbytes(self) -> int:
        return (self._tiles * TILE_NUMBERS + 2 * self._size) * 4

    def use(self, buffer: torch.Tensor) -> None:
        """Make the tensors views of `buffer`, uint8[nbytes]."""
        numbers = buffer.view(torch.int32)
        starts, counts = numbers[: 2 * self._size].view(2, self._size)
        tiles = numbers[2 * self._size :].view(self._tiles, TILE_NUMBERS)
        self.tensors = PrefixTensors(tiles, starts, counts, self._parts)

    def tables(self, rows: StepRows) -> PrefixTables | None:
        """The prefixes of these rows that are attended once. None if no group is worth it."""
        if self._planned is None or self._planned[0] is not rows:
            tables = None
            if len(rows.groups):
                tables = self._tiler.tables(rows.groups, rows.query_lens, self._parts)
            self._planned = rows, tables
        return self._planned[1]

    def packed(self, rows: StepRows) -> IntArray:
        packed = np.zeros(self.nbytes // 4, np.int32)
        tables = self.tables(rows)
        if tables is not None:
            count = len(tables.starts)
            packed[:count] = tables.starts
            packed[self._size : self._size + count] = tables.counts
            packed[2 * self._size :][: tables.tiles.size] = tables.tiles.ravel()
        return packed


_UNLIKE_TOKENS = 8
"""Tokens of a captured step before it has inputs, fewer than any vocabulary has. Rows of one token
would all go to the same experts, and a step of many would be timed as if it read those of one."""

_BYTES = 24
"""Per token: tokens and positions int64, slots and context_lens int32. Each table adds a KV index
int64."""


class StaticInputs:
    """The inputs of `size` tokens: views of one buffer, so that a step is loaded by one copy.

    tokens, positions    int64[size]; a token of -1 is the last sampled one of its slot
    kv_indices           int64[N, size], by each of N block tables
    slots, context_lens  int32[size]; a token's context includes itself

    step      of `size` rows, each of one resolved token
    rows      of a step that is captured with its attention, else None
    prefixes  that rows of one token share, if the captured step has room for any, else None
    resolved  int64[size], the tokens with each -1 looked up within the captured step

    Entries that a step does not fill have the padding slot. Their keys and values go to KV indices
    that nobody reads.
    """

    def __init__(
        self,
        size: int,
        slots: SlotTable,
        rows: "StaticRows | None" = None,
        prefixes: StaticPrefixes | None = None,
    ) -> None:
        """`rows` or `prefixes` belong to these inputs alone."""
        self.size, self.rows, self.prefixes = size, rows, prefixes
        self._table = slots
        device = slots.last_tokens.device
        more = rows or prefixes
        end = size * (_BYTES + 8 * slots.num_tables)
        total = end + (more.nbytes if more else 0)
        self._buffer = torch.zeros(total, dtype=torch.uint8, device=device)
        wide = self._buffer[: end - size * 8].view(torch.int64).view(-1, size)
        narrow = self._buffer[end - size * 8 : end].view(torch.int32).view(2, size)
        self.tokens, self.positions = wide[:2]
        self.kv_indices = wide[2:]
        self.slots, self.context_lens = narrow
        if more:
            more.use(self._buffer[end:])
        self.resolved = torch.zeros_like(self.tokens)
        self.step = self._whole_step()
        nothing = np.zeros(0, np.int32)
        rows_of_none = StepRows.over(nothing, nothing, nothing)
        self.load(nothing, slots.kv_indices(rows_of_none), rows_of_none)
        self.tokens.copy_(torch.arange(size) % _UNLIKE_TOKENS)

    def load(self, tokens: IntArray, kv_indices: npt.NDArray[np.integer], rows: StepRows) -> None:
        """Queue the copy of a step's T <= size tokens and KV indices [N, T], and of its rows."""
        count = rows.total
        wide = np.zeros((2 + len(kv_indices), self.size), np.int64)
        wide[0, :count], wide[1, :count] = tokens, rows.positions
        wide[2:] = self._table.scratch_kv_indices
        wide[2:, :count] = kv_indices
        narrow = np.empty((2, self.size), np.int32)
        narrow[0] = self._table.padding_slot
        narrow[0, :count] = rows.token_slots
        narrow[1] = wide[1] + 1
        arrays = [wide, narrow]
        if self.rows:
            arrays.append(self.rows.packed(rows, self._table.padding_slot))
        if self.prefixes:
            arrays.append(self.prefixes.packed(rows))
        self._buffer.copy_(pin(arrays), non_blocking=True)

    def has_room_for(self, rows: StepRows) -> bool:
        return rows.total <= self.size and (self.rows is None or self.rows.has_room_for(rows))

    def resolve_tokens(self) -> None:
        """Fill `resolved`, as part of what is captured."""
        self._table.resolve(self.slots, self.tokens, self.resolved)

    def _whole_step(self) -> PagedStep:
        """A step of `size` rows, each of one resolved token. Lengths on the host are made up:
        captured kernels read those on the device."""
        tables = AllTables.of(self._table, self.kv_indices)
        return PagedStep(
            tokens=self.resolved,
            positions=self.positions,
            kv_indices=self.kv_indices[0],
            block_tables=tables.block_tables[:, 0],
            slots=self.slots,
            query_starts=torch.arange(self.size + 1, dtype=torch.int32, device=self.slots.device),
            context_lens=self.context_lens,
            query_lens=np.ones(self.size, np.int32),
            contexts=np.ones(self.size, np.int32),
            prefixes=self.prefixes.tensors if self.prefixes else None,
            tables=tables,
        )

    def as_step(self, rows: StepRows) -> PagedStep:
        """The step that was loaded, whose rows are `rows`. Its tokens are not resolved."""
        arrays = [rows.slots, rows.starts, rows.contexts]
        slots, starts, lens = to_device(arrays, self._table.device)
        own = slice(rows.total)
        tables = AllTables.of(self._table, self.kv_indices[:, own])
        return PagedStep(
            *(self.tokens[own], self.positions[own], tables.kv_indices[0]),
            *(tables.block_tables[:, 0], slots, starts, lens, rows.query_lens, rows.contexts),
            groups=rows.groups,
            tables=tables,
        )

    def as_step_of_rows(self) -> PagedStep:
        """A step of these tokens in `rows`. Lengths on the host are the largest possible."""
        assert self.rows is not None, "captured with its attention"
        decode_rows, chunks = self.rows.decode_rows, self.rows.chunks
        return replace(
            self.step,
            slots=self.rows.slots,
            query_starts=self.rows.query_starts,
            context_lens=self.rows.context_lens,
            query_lens=np.repeat(np.array([1, self.size], np.int32), [decode_rows, chunks]),
            contexts=np.full(decode_rows + chunks, self.rows.max_context, np.int32),
        )


class StaticRows:
    """Device memory for the rows of a captured step with prompts.

    First come `decode_rows` entries for rows of one token, then `chunks` entries for the others.

    slots, context_lens  int32[decode_rows + chunks]
    query_starts         int32[decode_rows + chunks + 1]. Kernels do not read it for decode rows:
                         row i has token i.

    Unused entries have the padding slot. An unused decode row has an empty context: attention
    ignores the token at its index, which may be a chunk's. An unused chunk has no queries.

    The number of programs a decode row is fixed at capture: too few for one long context.
    """

    def __init__(self, decode_rows: int, chunks: int, max_context: int) -> None:
        """`max_context` is the most tokens that any row's context may have."""
        self.decode_rows, self.chunks = decode_rows, chunks
        self.max_context = max_context
        # Even, so that the three arrays together fill whole 8 bytes.
        self._width = (decode_rows + chunks + 2) // 2 * 2

    @property
    def nbytes(self) -> int:
        return 3 * self._width * 4

    def has_room_for(self, rows: StepRows) -> bool:
        """Whether each of these rows has an entry, and no decode row's context is too long."""
        decode_rows = leading_decode_rows(rows.query_lens)
        return (
            decode_rows <= self.decode_rows
            and len(rows.slots) - decode_rows <= self.chunks
            and rows.contexts[:decode_rows].max(initial=0) <= MIXED_GRAPH_MAX_CONTEXT
        )

    def use(self, buffer: torch.Tensor) -> None:
        """Make the three tensors views of `buffer`, uint8[nbytes]."""
        slots, lens, starts = buffer.view(torch.int32).view(3, self._width)
        count = self.decode_rows + self.chunks
        self.slots, self.context_lens = slots[:count], lens[:count]
        self.query_starts = starts[: count + 1]

    def packed(self, rows: StepRows, padding_slot: int) -> IntArray:
        """The buffer's content for these rows: int32[3, width]."""
        packed = np.ones((3, self._width), np.int32)
        first = leading_decode_rows(rows.query_lens)
        packed[0], packed[1, first : self.decode_rows] = padding_slot, 0
        chunks = slice(self.decode_rows, self.decode_rows + len(rows.slots) - first)
        for entries, values in zip(packed, (rows.slots, rows.contexts, rows.starts), strict=True):
            entries[:first], entries[chunks] = values[:first], values[first : len(rows.slots)]
        packed[2, chunks.stop :] = rows.total
        return packed
