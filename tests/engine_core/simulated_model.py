"""A model without arithmetic, run exactly as a worker would: slots, block tables, a KV store.

Its "keys and values" are the token ids themselves, and the next token is a hash of the context as
it is read back through the block table. A block that is lost, shared wrongly, reused too early or
registered under the wrong content therefore changes the text.
"""

import zlib
from collections import deque
from collections.abc import Sequence

import numpy as np

from workers.contract.messages import DecodeStep, GenerateOutput, StepMask

VOCAB = 50


def ids(*tokens: int) -> bytes:
    """Token ids as messages hold them: int32."""
    return np.array(tokens, np.int32).tobytes()


def next_token(context: list[int], allowed: Sequence[int] = range(VOCAB)) -> int:
    """The token after `context`: some function of the whole context, within `allowed`."""
    return allowed[zlib.crc32(np.array(context, np.int32).tobytes()) % len(allowed)]


def read_value(context: list[int], token: int) -> float:
    """The log-probability of `token` after `context`: some function of both, exact in float32."""
    return -zlib.crc32(np.array([*context, token], np.int32).tobytes()) % 4096 / 8


def allowed_tokens(bits: np.ndarray) -> list[int]:
    """The tokens of a mask's row."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCAB]).tolist()


def reference(prompt: list[int], max_tokens: int, stops: frozenset[int] = frozenset()) -> list[int]:
    """The tokens that a request must get, computed alone and without a cache."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class SimulatedModel:
    """Runs steps in submit order."""

    def __init__(self, num_blocks: int, block_size: int, max_running: int) -> None:
        self._store = np.full((num_blocks, block_size), -7, np.int64)
        self._tables = np.full((max_running, num_blocks), -1, np.int64)
        self._last = np.full(max_running, -9, np.int64)
        self._sampled_in = [-1] * max_running
        self._read: list[list[int]] = [[]] * max_running
        self._block_size = block_size

    def run(self, step: DecodeStep, mask: StepMask | None = None) -> GenerateOutput:
        for slot, index, block in np.frombuffer(step.block_updates, np.int32).reshape(-1, 3):
            self._tables[slot, index] = block
        for init in step.inits:
            self._read[init.slot] = np.frombuffer(init.read, np.int32).tolist()
        for source, target in np.frombuffer(step.block_copies, np.int32).reshape(-1, 2):
            self._store[target] = self._store[source]
        rows = self._rows(step)
        for slot, start, tokens, _ in rows:
            self._write(step, slot, start, tokens)
        self._attend(rows)
        self._check_groups(step, rows)
        sampling = [row for row in rows if row[3]]
        sampled = [
            self._sample(step, slot, start + len(tokens), allowed)
            for (slot, start, tokens, _), allowed in zip(
                sampling, _allowed(step, len(sampling), mask), strict=True
            )
        ]
        read = [
            read_value(self._context(slot, start + len(tokens)), token)
            for slot, start, tokens, _ in sampling
            for token in self._read[slot]
        ]
        return GenerateOutput(
            step=step.step,
            tokens=np.array(sampled, np.int32).tobytes(),
            read=np.array(read, np.float32).tobytes(),
        )

    def _check_groups(self, step: DecodeStep, rows: list[tuple[int, int, list[int], int]]) -> None:
        """Rows of a group read the same up to its prefix, and begin behind it."""
        end = 0
        for first, count, prefix in np.frombuffer(step.groups, np.int32).reshape(-1, 3).tolist():
            assert first >= end, "a row is in one group"
            end = first + count
            members = rows[first:end]
            assert len(members) == count > 1
            assert prefix > 0 == prefix % self._block_size
            blocks = [self._tables[slot, : prefix // self._block_size] for slot, *_ in members]
            assert len({self._store[own].tobytes() for own in blocks}) == 1
            assert all(start >= prefix for _, start, *_ in members)

    def _rows(self, step: DecodeStep) -> list[tuple[int, int, list[int], int]]:
        tokens = np.frombuffer(step.tokens, np.int32)
        lens = np.frombuffer(step.query_lens, np.int32)
        parts = np.split(tokens, np.cumsum(lens)[:-1])
        slots = np.frombuffer(step.slots, np.int32).tolist()
        starts = np.frombuffer(step.starts, np.int32).tolist()
        assert len(set(slots)) == len(slots), "a request has one row a step"
        return [
            (slot, start, part.tolist(), samples)
            for slot, start, part, samples in zip(slots, starts, parts, step.sample, strict=True)
        ]

    def _write(self, step: DecodeStep, slot: int, start: int, tokens: list[int]) -> None:
        for position, given in enumerate(tokens, start):
            if given < 0:
                assert self._sampled_in[slot] <= step.after, "the token was not waited for"
            block, offset = divmod(position, self._block_size)
            self._store[self._tables[slot, block], offset] = (
                self._last[slot] if given < 0 else given
            )

    def _attend(self, rows: list[tuple[int, int, list[int], int]]) -> None:
        """What later layers write, once all rows are written."""

    def _sample(self, step: DecodeStep, slot: int, length: int, allowed: Sequence[int]) -> int:
        self._last[slot] = token = next_token(self._context(slot, length), allowed)
        self._sampled_in[slot] = step.step
        return token

    def _context(self, slot: int, length: int) -> list[int]:
        blocks = -(-length // self._block_size)
        return self._store[self._tables[slot, :blocks]].reshape(-1)[:length].tolist()


def _allowed(step: DecodeStep, count: int, mask: StepMask | None) -> list[Sequence[int]]:
    """The tokens that each of a step's sampled rows may have."""
    if mask is None:
        assert not step.masked, "the mask was not waited for"
        return [range(VOCAB)] * count
    assert len(step.masked) == count
    bits = iter(np.frombuffer(mask.bits, np.int32).reshape(sum(step.masked), -1))
    return [allowed_tokens(next(bits)) if masked else range(VOCAB) for masked in step.masked]


class SimulatedPipeline:
    """Holds submitted steps, and their masks, until the next result is requested.

    `owed` are the numbers of the steps whose masks have not come; `most_owed` is the most at once.
    `groups` are those of each step.
    """

    def __init__(self, model: SimulatedModel) -> None:
        self.owed: set[int] = set()
        self.most_owed = 0
        self.groups: list[bytes] = []
        self._model = model
        self._queue: deque[DecodeStep] = deque()
        self._masks: dict[int, StepMask] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, step: DecodeStep) -> None:
        self._queue.append(step)
        self.groups.append(step.groups)
        if step.masked:
            self.owed.add(step.step)
            self.most_owed = max(self.most_owed, len(self.owed))

    def submit_mask(self, mask: StepMask) -> None:
        self.owed.remove(mask.step)
        self._masks[mask.step] = mask

    def next_result(self) -> GenerateOutput:
        step = self._queue.popleft()
        return self._model.run(step, self._masks.pop(step.step, None))
