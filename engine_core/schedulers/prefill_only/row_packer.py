"""Rows of the jobs that wait, packed into one encode step."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine_core.job import Job, JobKind
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.cost_model import StepWork
from engine_core.schedulers.encoded_rows import requests_token_states
from engine_core.schedulers.requests.encoder_rows import EncoderRows
from engine_core.schedulers.requests.waiting import KeyQueue

_MOST_MISFITS = 32


class RowPacker:
    """Fills one step, slice by slice of the jobs' arrays.

    A step has a row of a large job, however much small jobs of its priority ask for: so it never
    starves.
    """

    def __init__(self, budget: float, max_tokens: int, rows: Mapping[Job, EncoderRows]) -> None:
        """`budget` is in units of `EncoderRows.costs`."""
        self.left, self._tokens_left = budget, max_tokens
        self._misfits = 0
        self._has_large = False
        self.taken: dict[Job, int] = {}  # tokens of each job in the step
        self._rows = rows
        self._tokens: list[npt.NDArray[np.int32]] = []
        self._types: list[npt.NDArray[np.uint8]] = []
        self._lens: list[npt.NDArray[np.int32]] = []
        self._parts: list[tuple[Job, npt.NDArray[np.int32]]] = []

    def fill(self, queues: Sequence[KeyQueue[Job]]) -> None:
        """Give every key what its weight is of the budget left, then the remainder to the first."""
        if len(queues) > 1:
            whole, total = self.left, sum(queue.key.weight for queue in queues)
            for queue in queues:
                share = min(whole * queue.key.weight / total, self.left)
                others = self.left - share
                self.left = share
                self._fill_from(queue)
                self.left += others
        for queue in queues:
            self._fill_from(queue)

    def fill_one_by_one(self, jobs: Collection[Job], budget: float) -> None:
        """Give one job after the other what it takes of a new budget, and at least the next row of
        the first."""
        first = next(iter(jobs))
        least = self._rows[first].next_cost
        self.left, self._misfits = max(budget, least), 0
        for job in jobs if budget >= least else (first,):
            if self._is_over():
                return
            self._add_rows(job, self._rows[job], self.left)

    def _fill_from(self, queue: KeyQueue[Job]) -> None:
        groups = queue.items.groups()
        large = None if self._has_large else self._large_behind_small(groups)
        if large is not None:
            small, *groups = groups
            reserved = min(large.next_tokens, self._tokens_left)
            self._tokens_left -= reserved
            self._fill_evenly(small)
            self._tokens_left += reserved
            self.left = max(self.left, large.next_cost)
            self._has_large = True
        for equals in groups:
            self._fill_evenly(equals)

    def _large_behind_small(self, groups: Sequence[Collection[Job]]) -> EncoderRows | None:
        """The large job whose turn it is, if small jobs of its priority go first."""
        if len(groups) < 2:
            return None
        first, second = (next(iter(group)) for group in groups[:2])
        same = first.message.priority == second.message.priority
        return self._rows[second] if same and second.kind is JobKind.LARGE else None

    def _fill_evenly(self, jobs: Collection[Job]) -> None:
        """Give every job an even share of the budget left, then the remainder to the first. Ends
        once many did not fit: thousands may wait."""
        self._misfits = 0
        for limit in (self.left / len(jobs), self.left):
            for job in jobs:
                if self._is_over():
                    return
                self._add_rows(job, self._rows[job], limit)

    @property
    def work(self) -> StepWork:
        """That for the rows so far."""
        squares = sum(float(np.square(lens, dtype=np.float64).sum()) for lens in self._lens)
        return StepWork(sum(map(len, self._tokens)), squares)

    def _is_over(self) -> bool:
        return self.left <= 0 or self._misfits == _MOST_MISFITS

    def _add_rows(self, job: Job, rows: EncoderRows, limit: float) -> None:
        """Add the job's next rows: up to `limit`, and at least one row if it fits the budget
        left (or if the step is still empty)."""
        count = rows.fitting(min(limit, self.left), self._tokens_left)
        if count == 0:
            if not rows.num_left:
                return
            if self._parts and not rows.fitting(self.left, self._tokens_left):
                self._misfits += 1
                return
            count = 1
        start, stop = rows.cursor, rows.cursor + count
        rows.cursor = stop
        first, last = rows.offsets[start], rows.offsets[stop]
        self._tokens.append(rows.tokens[first:last])
        self._types.append(rows.token_types[first:last])
        self._lens.append(rows.lens[start:stop])
        self._parts.append((job, rows.numbers[start:stop]))
        self.left -= rows.costs[stop] - rows.costs[start]
        self._tokens_left -= last - first
        self.taken[job] = self.taken.get(job, 0) + last - first

    def batch(self, step: int) -> EncodeBatch:
        """The step as flat arrays."""
        return EncodeBatch(
            step=step,
            tokens=np.concatenate(self._tokens),
            lens=np.concatenate(self._lens),
            token_types=self._token_types(),
            parts=self._parts,
            token_states=self._token_states(),
            unpooled_lens=self._unpooled_lens(),
        )

    def _token_states(self) -> npt.NDArray[np.uint8]:
        flags = [(requests_token_states(job), len(rows)) for job, rows in self._parts]
        if not any(flag for flag, _ in flags):
            return np.empty(0, np.uint8)
        return np.concatenate([np.full(count, flag, np.uint8) for flag, count in flags])

    def _unpooled_lens(self) -> npt.NDArray[np.int32]:
        lens = [(job.message.tokenization.unpooled, len(rows)) for job, rows in self._parts]
        if not any(unpooled for unpooled, _ in lens):
            return np.empty(0, np.int32)
        return np.concatenate([np.full(count, unpooled, np.int32) for unpooled, count in lens])

    def _token_types(self) -> npt.NDArray[np.uint8]:
        if not any(map(len, self._types)):
            return np.empty(0, np.uint8)
        filled = [
            types if len(types) else np.zeros(len(tokens), np.uint8)
            for types, tokens in zip(self._types, self._tokens, strict=True)
        ]
        return np.concatenate(filled)
