"""Wrong steps, for tests of tests: a comparison that does not notice them compares nothing."""

from collections.abc import Callable

import msgspec
import numpy as np

from tests.workers.inline_engine import Mutation
from workers.contract.messages import DecodeStep


def swapped_blocks(at: int) -> Mutation:
    """Step `at` tells two rows that the other's first block is theirs.

    Between two rows: within one, attention would not notice, keys know their positions.
    """
    firsts: dict[int, int] = {}

    def mutate(message: DecodeStep) -> DecodeStep:
        updates = np.frombuffer(message.block_updates, np.int32).reshape(-1, 3)
        firsts.update((int(slot), int(block)) for slot, index, block in updates if index == 0)
        if message.step != at:
            return message
        one, other = np.frombuffer(message.slots, np.int32)[:2].tolist()
        swap = np.array([[one, 0, firsts[other]], [other, 0, firsts[one]]], np.int32)
        news = message.block_updates + swap.tobytes()
        return msgspec.structs.replace(message, block_updates=news)

    return mutate


def shifted_position(at: int) -> Mutation:
    """Step `at` puts its first row one position further."""

    def mutate(message: DecodeStep) -> DecodeStep:
        starts = np.frombuffer(message.starts, np.int32).copy()
        starts[0] += message.step == at
        return msgspec.structs.replace(message, starts=starts.tobytes())

    return mutate


MUTATIONS: dict[str, Callable[[int], Mutation]] = {
    "swapped_blocks": swapped_blocks,
    "shifted_position": shifted_position,
}
