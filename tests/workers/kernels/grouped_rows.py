"""Steps of groups of rows that share a prefix, and the tables of kernels for them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from tests.workers.attention_problems import Problem
from workers.attention.base import AttentionNeeds
from workers.kernels.attention import shared_prefix
from workers.step.paged_step import PrefixParts


class Group(NamedTuple):
    """Tokens of a prefix, whole pages, and the rows that share it: each (own cached tokens,
    queries). A prefix of 0 is none."""

    prefix: int
    rows: list[tuple[int, int]]


def grouped(groups: Sequence[Group], want: AttentionNeeds) -> Problem:
    rows: list[tuple[int, int]] = []
    known: list[tuple[int, int, int]] = []
    for group in groups:
        if group.prefix:
            known.append((len(rows), len(group.rows), group.prefix))
        rows += [(group.prefix + own, count) for own, count in group.rows]
    return Problem(rows, want, groups=known)


def unwritten_parts(problem: Problem, most: int, dtype: torch.dtype = torch.float32) -> PrefixParts:
    """Parts of a problem's prefixes, as many as `prefix_tiles` makes of them."""
    want, step = problem.want, problem.step
    starts, counts = np.zeros((2, len(problem.rows)), np.int32)
    for row, members, prefix in step.groups.tolist():
        starts[row : row + members] = prefix
        counts[row : row + members] = len(_cuts(prefix, most, want.block_size))
    shape = (most, len(problem.queries), want.num_heads, want.head_dim)
    return PrefixParts(
        torch.full(shape, torch.nan, dtype=dtype, device=want.device),
        torch.full(shape[:-1], torch.nan, device=want.device),
        torch.from_numpy(starts).to(want.device),
        torch.from_numpy(counts).to(want.device),
    )


def prefix_tiles(problem: Problem, most_parts: int) -> torch.Tensor:
    """int32[N, 6]: each group's tokens by tiles, its prefix in `most_parts` parts of whole blocks,
    and two entries of nothing."""
    want, starts = problem.want, problem.step.query_starts.tolist()
    heads = want.num_heads, want.num_kv_heads, want.head_dim
    most_tokens = shared_prefix.tokens_a_tile(*heads, want.dtype)
    tiles = [[0] * 6, [0] * 6]
    for row, members, prefix in problem.step.groups.tolist():
        stop = starts[row + members]
        cuts = _cuts(prefix, most_parts, want.block_size)
        for first in range(starts[row], stop, most_tokens):
            count = min(most_tokens, stop - first)
            tiles += [[first, count, row, *cut, part] for part, cut in enumerate(cuts)]
    return torch.tensor(tiles, dtype=torch.int32, device=want.device)


def _cuts(prefix: int, most: int, page: int) -> list[tuple[int, int]]:
    """[0, prefix) in at most `most` parts of whole pages."""
    pages = prefix // page
    edges = [pages * part // most * page for part in range(most + 1)]
    return [(start, end) for start, end in pairwise(edges) if start < end]
