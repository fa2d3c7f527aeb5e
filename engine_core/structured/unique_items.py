"""Lists of different values, as alternatives that have no value twice."""

from collections.abc import Callable
from itertools import product
from typing import Any

from engine_core.structured.schema_tree import Schema

MOST_VALUES = 16

_Pick = list[tuple[int, ...]]
"""One of each tuple, in this order."""

_BLOCK = 4

_PICKS: list[_Pick] = [
    [],
    [(0, 1, 2, 3)],
    *([(0, 1), (2, 3)], [(0, 2), (1, 3)]),
    *([(0, 1), (2,), (3,)], [(0,), (1,), (2, 3)]),
    [(0,), (1,), (2,), (3,)],
]
"""Each set of four values is what one of these picks."""

_BEGINNINGS: list[_Pick] = [
    [(0,), (1,), (2,), (3,)],
    [(1, 2), (3,), (0,)],
    [(0, 3), (2,), (1,)],
    [(0, 1), (2, 3)],
]
"""Each set of four values is what the beginning of one of these picks."""


def unique_lists(
    values: list[Any], least: int, most: int | None, define: Callable[[list[Any]], Schema]
) -> Schema:
    """A schema for the lists of `least` to `most` of these values, none of them twice.

    Each set of values has at least one order in it: roughly that of `values`. `define` returns a
    reference to a schema for one of some values.
    """
    blocks = [range(at, min(at + _BLOCK, len(values))) for at in range(0, len(values), _BLOCK)]
    *beginning, end = [_within(block, _PICKS) for block in blocks[:-1]] + [
        _within(blocks[-1], _BEGINNINGS)
    ]
    references: dict[tuple[int, ...], Schema] = {}

    def one_of(choices: tuple[int, ...]) -> Schema:
        if choices not in references:
            references[choices] = define([values[choice] for choice in choices])
        return references[choices]

    alternatives: list[Schema] = []
    for *picks, last in product(*beginning, end):
        first = [choices for pick in picks for choices in pick]
        items = [*first, *last]
        low, high = max(len(first), least), min(len(items), len(items) if most is None else most)
        if low <= high:
            places = [one_of(choices) for choices in items[:high]]
            alternatives.append(
                {"type": "array", "prefixItems": places, "minItems": low, "items": False}
            )
    return {"anyOf": alternatives} if alternatives else {"enum": []}


def _within(block: range, picks: list[_Pick]) -> list[_Pick]:
    """The picks as they are in a block, which may have fewer values."""
    found: list[_Pick] = []
    for pick in picks:
        present = [tuple(block[i] for i in choices if i < len(block)) for choices in pick]
        if (used := [choices for choices in present if choices]) not in found:
            found.append(used)
    return found
