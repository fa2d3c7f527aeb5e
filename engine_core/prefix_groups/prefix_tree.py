"""The compact radix tree of sorted prompts, and the choice of the nodes that become prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt

_Piece = tuple[int, int]


@dataclass(slots=True)
class _Node:
    """An inner node: the `depth` first tokens that all prompts below it share.

    rows       its children that are prompts
    nodes      its other children
    constant, pieces  what is saved below it, as a function of the length e of the longest prefix
               above it that is a group's: constant + Σ slope · max(0, e - start) over the pieces
               (start, slope), for e < depth
    opens_below  it becomes a prefix itself where e is less
    """

    depth: int
    rows: list[int] = field(default_factory=list[int])
    nodes: list["_Node"] = field(default_factory=list["_Node"])
    constant: int = 0
    pieces: list[_Piece] = field(default_factory=list[_Piece])
    opens_below: int = 0


class PrefixTree:
    """The tree of prompts 0 to P - 1, sorted by their tokens."""

    def __init__(self, shared: Sequence[int], least_shared: int) -> None:
        """`shared` int[P - 1] are the tokens that each prompt shares with the next one. Nodes of
        fewer than `least_shared` are no prefixes."""
        self._least_shared = least_shared
        self._num_prompts = len(shared) + 1
        self._finished: list[_Node] = []  # children before their parents
        self._grow(shared)

    def best_prefixes(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """For each prompt the number of its group, int32[P], and for each group the length of its
        prefix, int32[G]: that of group 0 is 0.

        Each prompt may join the group of any node above it. It saves that prefix's length, and each
        group pays for its prefix once. What is saved below a node is convex in the prefix above it,
        and constant where the node is a prefix itself: so the best choice is found in one pass up,
        and told in one pass down.
        """
        for node in self._finished:
            _weigh(node, may_open=node.depth >= self._least_shared)
        lens = [0]
        groups = np.zeros(self._num_prompts, np.int32)
        pending = [(self._finished[-1], 0)]
        while pending:
            node, group = pending.pop()
            if lens[group] < node.opens_below:
                group = len(lens)
                lens.append(node.depth)
            groups[node.rows] = group
            pending += [(child, group) for child in node.nodes]
        return groups, np.array(lens, np.int32)

    def _grow(self, shared: Sequence[int]) -> None:
        """From left to right, along the rightmost path: each node is finished once no later prompt
        can be below it."""
        path = [_Node(0)]
        for row, depth in enumerate([*shared, 0]):
            if depth > path[-1].depth:
                path.append(_Node(depth))
            path[-1].rows.append(row)
            while path[-1].depth > depth:
                self._finish(path, depth)
        self._finished += path

    def _finish(self, path: list[_Node], depth: int) -> None:
        """The last node of `path` gets its parent, which is at `depth` or deeper."""
        node = path.pop()
        self._finished.append(node)
        if path[-1].depth < depth:
            path.append(_Node(depth))
        path[-1].nodes.append(node)


def _weigh(node: _Node, *, may_open: bool) -> None:
    """Work out what is saved below a node whose children are finished."""
    pieces = [piece for child in node.nodes for piece in child.pieces if piece[0] < node.depth]
    pieces.sort(key=itemgetter(0))
    if node.rows:
        pieces.insert(0, (0, len(node.rows)))
    node.constant = sum(child.constant for child in node.nodes)
    node.pieces = pieces
    opened = node.constant - node.depth
    opened += sum(slope * (node.depth - start) for start, slope in pieces)
    if may_open and opened > node.constant:
        _open(node, opened)


def _open(node: _Node, opened: int) -> None:
    """The node saves `opened` if it becomes a prefix, which is more than below a prefix of length
    0: find the least length with which it is not, and cut the function off there."""
    saved, slope, at = node.constant, 0, 0
    rest = iter([*node.pieces, (node.depth, 0)])
    for start, more in rest:
        if saved + slope * (start - at) >= opened:
            break
        saved += slope * (start - at)
        slope, at = slope + more, start
    first = at - (saved - opened) // slope
    kept = [piece for piece in node.pieces if piece[0] > first]
    slope = sum(more for start, more in node.pieces if start <= first)
    jump = (
        node.constant
        + sum(more * (first - start) for start, more in node.pieces if start < first)
        - opened
    )
    node.constant, node.opens_below = opened, first
    node.pieces = [(first - 1, jump), (first, slope - jump), *kept]
