"""The engine's part in tests of a worker: rows, slots, blocks and the StepInputs they make."""

import random
from dataclasses import dataclass, field

import msgspec
import numpy as np

from workers.contract.messages import DecodeStep, EncodeStep, SlotInit
from workers.contract.token_sampling import GREEDY


@dataclass
class Row:
    """A request in a slot. `tokens` are the known ones; `submitted` of them are in some step. The
    workers know `announced_blocks` of its blocks."""

    slot: int
    tokens: list[int]
    init: SlotInit
    submitted: int = 0
    blocks: list[int] = field(default_factory=list)
    announced: bool = False
    announced_blocks: int = 0


class StepMaker:
    """Makes the messages that an engine core would; block ids are handed out in random order."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._free = list(range(num_blocks))
        random.Random(0).shuffle(self._free)
        self._step = 0
        self._slots = 0

    def admit(
        self,
        prompt: list[int],
        *,
        seed: int = 0,
        logprobs: int = -1,
        prompt_logprobs: int = -1,
        **sampling,
    ) -> Row:
        """A new row in the next unused slot; greedy unless `sampling` says otherwise."""
        slot, self._slots = self._slots, self._slots + 1
        init = SlotInit(
            slot=slot,
            prompt_len=len(prompt),
            seed=seed,
            sampling=msgspec.structs.replace(GREEDY, **sampling),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        return Row(slot, list(prompt), init)

    def step(
        self, work: list[tuple[Row, int]], *, score: bool = False, after: int = -1
    ) -> DecodeStep:
        """One step that takes `count` more tokens of each row; beyond its known ones they are -1.

        A row is sampled where the step reaches its last known token.
        """
        updates = [update for row, count in work for update in self._grow(row, count)]
        inits = [row.init for row, _ in work if not row.announced]
        tokens: list[int] = []
        targets: list[int] = []
        for row, count in work:
            row.announced = True
            window = range(row.submitted, row.submitted + count)
            prompt = row.init.prompt_len
            tokens += [row.tokens[i] if i < len(row.tokens) else -1 for i in window]
            targets += [row.tokens[i + 1] if i + 1 < prompt else -1 for i in window]
        message = DecodeStep(
            step=self._step,
            tokens=int32(tokens),
            query_lens=int32([count for _, count in work]),
            slots=int32([row.slot for row, _ in work]),
            starts=int32([row.submitted for row, _ in work]),
            sample=bytes(row.submitted + count >= len(row.tokens) for row, count in work),
            block_updates=int32([number for update in updates for number in update]),
            inits=inits,
            after=after,
            targets=int32(targets) if score else b"",
        )
        for row, count in work:
            row.submitted += count
        self._step += 1
        return message

    def _grow(self, row: Row, count: int) -> list[tuple[int, int, int]]:
        needed = -(-(row.submitted + count) // self._block_size)
        row.blocks += [self._free.pop() for _ in range(len(row.blocks), needed)]
        first, row.announced_blocks = row.announced_blocks, len(row.blocks)
        return [(row.slot, index, row.blocks[index]) for index in range(first, len(row.blocks))]


def encoder_step(texts: list[list[int]], token_types: list[list[int]] | None = None) -> EncodeStep:
    types = bytes(kind for text in token_types for kind in text) if token_types else b""
    return EncodeStep(
        step=0,
        tokens=int32([token for text in texts for token in text]),
        query_lens=int32([len(text) for text in texts]),
        token_types=types,
    )


def int32(values: list[int]) -> bytes:
    return np.array(values, np.int32).tobytes()
