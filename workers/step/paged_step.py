"""A decode step as a stage's layers see it: rows in a paged KV cache, as tensors on its device."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.device.transfer import to_device
from workers.step.rows import (
    NO_GROUPS,
    IntArray,
    StepRows,
    padded,
)
from workers.step.slot_table import SlotTable


class PrefixTensors(NamedTuple):
    """The prefixes that are attended once, in memory that a captured step reads.

    int32[N, 6], int32[R] and int32[R]: see `attention.prefix_tiles.PrefixTables`. A row has at most
    `most_parts`.
    """

    tiles: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    most_parts: int


class PrefixParts(NamedTuple):
    """The prefixes of R rows, each divided into at most P parts. Tokens of the step
    behind the first T have no prefix.

    outputs       [P, T, H, D], contiguous. A token's unused parts are not written.
    log_sum_exps  float32[P, T, H] (natural logarithm), likewise.
    starts        int32[R], tokens of the row's prefix, whole blocks. 0 without a prefix.
    counts        int32[R], parts of the row's prefix. 0 without a prefix.
    """

    outputs: torch.Tensor
    log_sum_exps: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @property
    def stride(self) -> int:
        """T * H: from a part to the next, in heads."""
        return self.log_sum_exps.stride(0)


class AllTables(NamedTuple):
    """The N block tables of a slot, and the KV indices by each: int32[max_running + 1, N,
    max_blocks], int64[N, T]."""

    block_tables: torch.Tensor
    kv_indices: torch.Tensor

    @classmethod
    def of(cls, table: SlotTable, kv_indices: torch.Tensor) -> Self:
        return cls(table.device_tables.unflatten(1, (table.num_tables, -1)), kv_indices)


@dataclass(frozen=True, slots=True)
class PagedStep:
    """R rows, T tokens (rows one after another, then padding), as layers of one block table see
    them: at first those of table 0.

    tokens         int64[T'], with T' >= T: see `padded`.
    positions      int64[T'].
    kv_indices     int64[T]: where each token's keys and values go, block * block_size + offset.
    block_tables   int32[max_running + 1, max_blocks]: a row of block ids a slot, dense. Entries
                   that no token of the step sees any more may be any block's.
    slots          int32[R]: the rows of `block_tables` that are this step's.
    query_starts   int32[R + 1].
    context_lens   int32[R]: cached tokens and this step's.
    query_lens, contexts  the same lengths as NumPy arrays, for planning without a read-back.
    token_slots    int32[T], or None: each token's slot, if some are -1 and must be looked up.
    groups         int32[G, 3]: rows that share a prefix (`DecodeStep.groups`).
    prefixes       in place of `groups`, if the step is captured with room for any groups.
    tables         all block tables; None if no other one is read.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    kv_indices: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    query_lens: IntArray
    contexts: IntArray
    token_slots: torch.Tensor | None = None
    groups: IntArray = field(default_factory=lambda: NO_GROUPS)
    prefixes: PrefixTensors | None = None
    tables: AllTables | None = None

    @classmethod
    def of(
        cls, rows: StepRows, tokens: IntArray, table: SlotTable, *, look_up: bool = True
    ) -> Self:
        """Everything from the host, in one copy: `tokens` int32[T]. With `look_up`, -1 stands for
        the newest token of the row's slot, and `resolve` has to be called."""
        device = table.device
        arrays = [
            padded(tokens, device),
            padded(rows.positions, device),
            table.kv_indices(rows),
            rows.slots,
            rows.starts,
            rows.contexts,
        ]
        if look_up and (tokens < 0).any():
            arrays.append(rows.token_slots)
        ids, positions, kv_indices, slots, starts, lens, *token_slots = to_device(arrays, device)
        tables = AllTables.of(table, kv_indices)
        own = rows.query_lens, rows.contexts, next(iter(token_slots), None), rows.groups
        first = kv_indices[0], tables.block_tables[:, 0]
        return cls(ids, positions, *first, slots, starts, lens, *own, tables=tables)

    def of_table(self, number: int) -> Self:
        """The step as layers of another table see it, of one that table 0's layers see."""
        if self.tables is None or number == 0:
            return self
        tables, kv_indices = self.tables
        return replace(self, block_tables=tables[:, number], kv_indices=kv_indices[number])

    def resolve(self, table: SlotTable) -> None:
        if self.token_slots is not None:
            own = self.tokens[: len(self.token_slots)]
            table.resolve(self.token_slots, own, own)

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last tokens of E of a step's rows, fewer than it has tokens.

    indices  int64[E']: their indices among the step's tokens, padded if there are any (see
             `padded`). Padding is the first token.
    rows     the rows as a step of one token each. Its tokens, positions and kv_indices are not to
             be used: their keys and values are cached already.
    """

    indices: torch.Tensor
    rows: PagedStep

    @classmethod
    def of(cls, step: PagedStep, rows: StepRows, subset: npt.NDArray[np.intp]) -> Self:
        """The last tokens of the rows `subset` of `step`, which are `rows`, in one copy."""
        device, count = step.slots.device, len(subset)
        indices = rows.last_token_indices[subset]
        if count:
            indices = padded(indices, device)
        contexts = rows.contexts[subset]
        arrays = [indices, rows.slots[subset], contexts, np.arange(count + 1, dtype=np.int32)]
        indices, slots, lens, starts = to_device(arrays, device)
        alone = replace(
            step,
            slots=slots,
            query_starts=starts,
            context_lens=lens,
            query_lens=np.ones(count, np.int32),
            contexts=contexts,
            groups=rows.groups_among(subset) if len(rows.groups) else rows.groups,
            prefixes=None,
        )
        return cls(indices, alone)
