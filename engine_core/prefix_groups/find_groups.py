"""Finds the prompts that begin alike, so that each shared prefix is computed once.

As in BatchLLM (arXiv:2412.03594, section 4.1): a tree of the prompts by their tokens, of whose
nodes those become prefixes that save the most tokens, in groups of one level.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_core.prefix_groups.prefix_tree import PrefixTree

_IntArray = npt.NDArray[np.int32]


class PromptGroup(NamedTuple):
    """Prompts `members` int32[M] (their indices) that begin with the same `prefix_len` tokens, and
    have at least one other each. With 0 they share nothing."""

    prefix_len: int
    members: _IntArray


LEAST_SHARED = 16
"""Tokens of a prefix that are worth a group: its members begin a step after its first."""


def find_groups(prompts: Sequence[bytes], least_shared: int = LEAST_SHARED) -> list[PromptGroup]:
    """Every prompt (int32 ids as bytes, at least one each) in exactly one group.

    No other groups of one level with prefixes of `least_shared` tokens or more leave fewer tokens
    to compute. Prompts that share nothing are one group, the last; members of the others are in the
    order of their tokens.
    """
    if not prompts:
        return []
    tokens = [np.frombuffer(prompt, np.int32) for prompt in prompts]
    # Ids are not negative: as big-endian bytes they are in the order of their numbers.
    keys = [ids.byteswap().tobytes() for ids in tokens]
    order = sorted(range(len(prompts)), key=keys.__getitem__)
    shared = [_shared_len(tokens[one], tokens[other]) for one, other in pairwise(order)]
    prefix_of, lens = PrefixTree(shared, least_shared).best_prefixes()
    by_group = np.argsort(prefix_of, kind="stable")
    ends = np.flatnonzero(np.diff(prefix_of[by_group])) + 1
    members = np.split(np.array(order, np.int32)[by_group], ends)
    groups = [
        PromptGroup(int(lens[prefix_of[rows[0]]]), own)
        for rows, own in zip(np.split(by_group, ends), members, strict=True)
    ]
    return sorted(groups, key=lambda group: group.prefix_len == 0)


def _shared_len(one: _IntArray, other: _IntArray) -> int:
    """How many tokens both begin with; the last one of a prompt is always its own."""
    most = min(len(one), len(other)) - 1
    if most == 0:
        return 0
    different = one[:most] != other[:most]
    first = int(different.argmax())
    return first if different[first] else most
