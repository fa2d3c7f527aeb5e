"""How a decoder's layers share the blocks of its KV cache: groups of layers, and block tables.

As in vLLM's hybrid KV cache manager, layers with one window are a group, and one pool of blocks of
one size serves all groups: so any mix of long and short sequences fits, and no flag divides memory.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

from workers.contract.model_config import ModelConfig

_MOST_TABLES = 8
"""Each table has KV indices and an attention plan of its own in every step."""

_WORTH_FEWER = 1.05
"""With fewer tables, a sequence of full length may take so many times the least memory."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers in which a token sees equally far back.

    layers       their numbers in the model
    reach        tokens before itself that one sees at most: all, or a window's others
    first_table  a slot's block tables from here on are the group's,
    num_tables   so many. A block in each of them, taken and given back together, holds `block_size`
                 tokens in all layers of the group
    seen         the most blocks, of a table, that one position sees
    most         the most that are held at once, while a step computes a chunk
    """

    layers: tuple[int, ...]
    reach: int
    first_table: int
    num_tables: int
    seen: int
    most: int

    @property
    def windowed(self) -> bool:
        """Whether a token may see less than all before it."""
        return self.reach < sys.maxsize


class Place(NamedTuple):
    """Where a layer keeps a block: its slot's `table` names it, and it is there layer `number`."""

    table: int
    number: int


@dataclass(frozen=True)
class CacheLayout:
    """The groups of a model, by falling reach: those without a window, if any, come first.

    A block holds `block_size` tokens in one layer of each place: as many as the table with the most
    layers has on a stage. So its bytes differ by stage, and its number is valid on all of them.
    """

    groups: tuple[CacheGroup, ...]
    block_size: int
    max_model_len: int
    max_step_tokens: int

    @classmethod
    def of(
        cls, model: ModelConfig, block_size: int, max_model_len: int, max_step_tokens: int
    ) -> Self:
        """The layout of a causal model, with the fewest tables that take little memory."""
        by_reach: dict[int, list[int]] = {}
        for layer, kind in enumerate(model.layer_kinds):
            window = model.attention[kind].window
            # A window that holds every text is none.
            reach = sys.maxsize if window is None or window >= max_model_len else window - 1
            by_reach.setdefault(reach, []).append(layer)
        reaches = sorted(by_reach, reverse=True)
        seen = [_blocks(reach, block_size) + 1 for reach in reaches]
        usual = [min(own, _blocks(max_model_len, block_size)) for own in seen]
        tables = _table_counts([len(by_reach[reach]) for reach in reaches], usual)
        firsts = accumulate(tables, initial=0)
        groups = tuple(
            CacheGroup(
                layers=tuple(by_reach[reach]),
                reach=reach,
                first_table=first,
                num_tables=count,
                seen=own,
                most=_blocks(reach + max_step_tokens, block_size) + 1,
            )
            for reach, first, count, own in zip(reaches, firsts, tables, seen, strict=False)
        )
        return cls(groups, block_size, max_model_len, max_step_tokens)

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

    def places(self, layers: Iterable[int]) -> list[Place]:
        """The place of each of a stage's `layers`: those of a group are spread evenly over its
        tables."""
        places: dict[int, Place] = {}
        held = set(layers)
        for group in self.groups:
            own = [layer for layer in group.layers if layer in held]
            for at, layer in enumerate(own):
                number, table = divmod(at, group.num_tables)
                places[layer] = Place(group.first_table + table, number)
        return [places[layer] for layer in sorted(held)]

    def block_layers(self, layers: Iterable[int]) -> int:
        """Layers that a block has room for on the stage that holds `layers`."""
        return 1 + max(place.number for place in self.places(layers))


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _table_counts(layers: Sequence[int], blocks: Sequence[int]) -> list[int]:
    """How many tables each group gets, of so many `layers`, whose sequences of full length hold
    `blocks` in each table.

    Where layers need unequal bytes, these may stand in place of numbers of layers.
    """
    plans = list(_plans(layers))

    def size(plan: tuple[int, list[int]]) -> int:
        block_layers, tables = plan
        return block_layers * sum(map(int.__mul__, tables, blocks))

    least = min(map(size, plans))
    fitting = [plan for plan in plans if size(plan) <= _WORTH_FEWER * least]
    return min(fitting, key=lambda plan: (sum(plan[1]), size(plan)))[1]


def _plans(layers: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The layers of a block, and each group's tables: few, or one each."""
    for block_layers in {-(-own // count) for own in layers for count in range(1, _MOST_TABLES)}:
        tables = [-(-own // block_layers) for own in layers]
        if sum(tables) <= max(_MOST_TABLES, len(layers)):
            yield block_layers, tables
