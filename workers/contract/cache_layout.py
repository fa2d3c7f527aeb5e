"""How a decoder's layers share the blocks of its KV cache: groups of layers, and block tables.

As in vLLM's hybrid KV cache manager, layers with one window and one size of keys are a group, and
one pool of blocks of one size serves all groups: so any mix of long and short sequences fits, and
no flag divides memory.

A block is divided into planes. A plane has room for the keys, and again for the values, of
`block_size` tokens in some layers of any group: in one of the layers with the largest keys, if
their size is a multiple of the others'.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

from workers.contract.model_config import ModelConfig

_MOST_TABLES = 16
"""Each table has KV indices and an attention plan of its own in every step."""

_WORTH_FEWER = 1.05
"""With fewer tables, a sequence of full length may take so many times the least memory."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose tokens see equally far back, and have keys of one shape.

    layers       their numbers in the model: those that keep keys and values
    reach        tokens before itself that one sees at most: all, or a window's others
    kv_heads, head_dim  the shape of a token's keys in a layer, and of its values
    a_plane      layers of the group that a plane has room for
    first_table  a slot's block tables from here on are the group's,
    num_tables   so many. A block in each of them, taken and given back together, holds `block_size`
                 tokens in all layers of the group
    seen         the most blocks, of a table, that one position sees
    most         the most that are held at once, while a step computes a chunk
    """

    layers: tuple[int, ...]
    reach: int
    kv_heads: int
    head_dim: int
    a_plane: int
    first_table: int
    num_tables: int
    seen: int
    most: int

    @property
    def windowed(self) -> bool:
        """Whether a token may see less than all before it."""
        return self.reach < sys.maxsize


class Place(NamedTuple):
    """The place of a layer of a group in a block, which its slot's `table` names. The layer has one
    of the equal parts of one of its planes, number `part`."""

    group: CacheGroup
    table: int
    plane: int
    part: int


@dataclass(frozen=True)
class CacheLayout:
    """The groups of a model, by falling reach: those without a window, if any, come first.

    A block has as many planes as the table that needs most of them on a stage. So its bytes differ
    by stage, and its number is valid on all of them.

    plane_numbers  numbers of a token's keys in a plane
    """

    groups: tuple[CacheGroup, ...]
    plane_numbers: int
    block_size: int
    max_model_len: int
    max_step_tokens: int

    @classmethod
    def of(
        cls, model: ModelConfig, block_size: int, max_model_len: int, max_step_tokens: int
    ) -> Self:
        """The layout of a causal model, with the fewest tables that take little memory."""
        by_kind: dict[tuple[int, int, int], list[int]] = {}
        for layer, kind in enumerate(model.layer_kinds):
            if model.kv_layer(layer) != layer:
                continue
            window = model.attention[kind].window
            # A window that holds every text is none.
            reach = sys.maxsize if window is None or window >= max_model_len else window - 1
            _, kv_heads, head_dim = model.heads_of(layer)
            by_kind.setdefault((reach, kv_heads, head_dim), []).append(layer)
        kinds = sorted(by_kind, reverse=True)
        plane = math.lcm(*(kv_heads * head_dim for _, kv_heads, head_dim in kinds))
        a_plane = [plane // (kv_heads * head_dim) for _, kv_heads, head_dim in kinds]
        seen = [_blocks(reach, block_size) + 1 for reach, *_ in kinds]
        usual = [min(own, _blocks(max_model_len, block_size)) for own in seen]
        tables = _table_counts([len(by_kind[kind]) for kind in kinds], usual, a_plane)
        firsts = accumulate(tables, initial=0)
        groups = tuple(
            CacheGroup(
                *(tuple(by_kind[kind]), *kind, per_plane, first, count, own),
                most=_blocks(kind[0] + max_step_tokens, block_size) + 1,
            )
            for kind, per_plane, first, count, own in zip(
                kinds, a_plane, firsts, tables, seen, strict=False
            )
        )
        return cls(groups, plane, block_size, max_model_len, max_step_tokens)

    @cached_property
    def num_tables(self) -> int:
        """Block tables of a slot."""
        return sum(group.num_tables for group in self.groups)

    @cached_property
    def max_blocks(self) -> int:
        """Entries of a block table."""
        return _blocks(self.max_model_len, self.block_size)

    @property
    def windowed(self) -> bool:
        """Whether any layer gives back what is out of its window."""
        return any(group.windowed for group in self.groups)

    def blocks_held(self, num_tokens: int, rows: int = 1) -> int:
        """Blocks that `rows` sequences of together `num_tokens` tokens hold while they generate, at
        most."""
        whole = num_tokens // self.block_size + rows
        if rows == 1:
            whole = _blocks(num_tokens, self.block_size)
        return sum([group.num_tables * min(whole, rows * group.seen) for group in self.groups])

    def blocks_alone(self, entries: int) -> int:
        """The most blocks that a sequence takes at once whose tables have so many entries."""
        return sum(group.num_tables * min(entries, group.most) for group in self.groups)

    def longest(self, num_blocks: int) -> int:
        """The most tokens of a sequence for which so many blocks are enough, up to the block with
        the last of `max_model_len`."""
        every = range(self.max_blocks + 1)
        return (bisect_right(every, num_blocks, key=self.blocks_alone) - 1) * self.block_size

    def tokens(self, num_blocks: int) -> int:
        """Tokens that so many blocks hold, in sequences of `max_model_len`: without windows those
        of any sequences."""
        return (
            num_blocks * self.max_blocks * self.block_size // self.blocks_held(self.max_model_len)
        )

    def described(self, num_blocks: int) -> str:
        """The tokens that so many blocks hold, in words."""
        tokens = f"{self.tokens(num_blocks):,} tokens"
        if not self.windowed:
            return tokens
        return (
            f"{tokens} in sequences of {self.max_model_len:,}, of which layers with a window keep "
            "those of their window"
        )

    def usable(self, max_running: int) -> int:
        """The most blocks that are ever used: by running sequences of full length, one of which may
        be computing a step's tokens."""
        step = _blocks(self.max_step_tokens, self.block_size)
        room = [
            group.num_tables * min(step, max(0, self.max_blocks - group.seen))
            for group in self.groups
        ]
        return max_running * self.blocks_held(self.max_model_len) + sum(room)

    def places(self, layers: Iterable[int]) -> dict[int, Place]:
        """The place of each of a stage's `layers` that keeps keys and values: those of a group are
        spread evenly over its tables."""
        places: dict[int, Place] = {}
        held = set(layers)
        for group in self.groups:
            own = [layer for layer in group.layers if layer in held]
            for at, layer in enumerate(own):
                number, table = divmod(at, group.num_tables)
                plane, part = divmod(number, group.a_plane)
                places[layer] = Place(group, group.first_table + table, plane, part)
        return places

    def block_planes(self, layers: Iterable[int]) -> int:
        """Planes of a block on the stage that holds `layers`."""
        return 1 + max(place.plane for place in self.places(layers).values())

    @cached_property
    def table_parts(self) -> list[int]:
        """For each block table, the parts of a plane in its layers."""
        return [group.a_plane for group in self.groups for _ in range(group.num_tables)]


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _table_counts(
    layers: Sequence[int], blocks: Sequence[int], a_plane: Sequence[int]
) -> list[int]:
    """How many tables each group gets, of so many `layers`, whose sequences of full length hold
    `blocks` in each table. A plane has room for `a_plane` of its layers."""
    plans = list(_plans(layers, a_plane))

    def size(plan: tuple[int, list[int]]) -> int:
        planes, tables = plan
        return planes * sum(map(int.__mul__, tables, blocks))

    least = min(map(size, plans))
    fitting = [plan for plan in plans if size(plan) <= _WORTH_FEWER * least]
    return min(fitting, key=lambda plan: (sum(plan[1]), size(plan)))[1]


def _plans(layers: Sequence[int], a_plane: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The planes of a block, and each group's tables: few, or one each."""
    groups = list(zip(layers, a_plane, strict=True))
    counts = range(1, _MOST_TABLES)
    for planes in {-(-own // (count * parts)) for own, parts in groups for count in counts}:
        tables = [-(-own // (planes * parts)) for own, parts in groups]
        if sum(tables) <= max(_MOST_TABLES, len(layers)):
            yield planes, tables
