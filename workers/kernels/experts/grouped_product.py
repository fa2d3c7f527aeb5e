"""The fastest way to the products of experts: torch's grouped product, or a tile of our own.

The library multiplies in bfloat16 alone, and neither gathers rows nor applies a gate. Each layer's
shape is measured once, at the numbers of pairs in `GROUPED_MEASURED_PAIRS`, with its own weight.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import logging
import math
from bisect import bisect_left
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from triton.compiler.compiler import max_shared_mem

from workers.device.choices import Choices
from workers.device.timing import Stopwatch
from workers.device.tuning import (
    GROUPED_FLOAT32_TILE,
    GROUPED_MEASURED_PAIRS,
    GROUPED_TILES,
    GroupedTile,
)
from workers.kernels.experts.grouped_linear import (
    PackedFp4,
    Pairs,
    grouped_linear,
    packed,
    shared_bytes,
)
from workers.kernels.experts.routing import group
from workers.kernels.linear.fused import Fp8Weight, FusedGate, Mxfp4Weight
from workers.kernels.linear.quantized_rows import quantize
from workers.kernels.linear.rowwise import activation_mul

_logger = logging.getLogger(__name__)


class GroupedProduct:
    """Rows by the weights [E * out, in] of E experts (see `Groups`). With a gate the outputs are
    half as many."""

    def __init__(
        self,
        weight: torch.Tensor | Fp8Weight | Mxfp4Weight,
        bias: torch.Tensor | None,
        gate: FusedGate | None,
        dtype: torch.dtype,
        experts: int,
        choices: Choices,
    ) -> None:
        """`dtype` is that of rows and results. The ways are one of the `choices`, measured in some
        seconds."""
        own = packed(weight) if isinstance(weight, Mxfp4Weight) else weight
        self._weight: torch.Tensor | Fp8Weight | PackedFp4 = own
        self._bias, self._gate, self._dtype, self._experts = bias, gate, dtype, experts
        shapes = [part.shape for part in ([own] if isinstance(own, torch.Tensor) else own[:2])]
        shape = shapes, bias is not None, gate, dtype, experts
        device, kind = self._numbers.device, list[GroupedTile | None]
        self._ways = choices.get("grouped product", kind, self._measured, device, *shape)

    def of_tokens(self, rows: torch.Tensor, groups: Any) -> torch.Tensor:
        return self._product(rows, Pairs(*groups, of_tokens=True))

    def of_pairs(self, rows: torch.Tensor, groups: Any) -> torch.Tensor:
        return self._product(rows, Pairs(*groups, of_tokens=False))

    def _product(self, rows: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        index = bisect_left(GROUPED_MEASURED_PAIRS, len(pairs.order))
        return self._multiply(rows, pairs, self._ways[min(index, len(self._ways) - 1)])

    def _multiply(self, rows: torch.Tensor, pairs: Pairs, tile: GroupedTile | None) -> torch.Tensor:
        """By the own kernel with this `tile`, or by the library without one."""
        weight, own = self._weight, rows
        if tile is None:
            return self._by_library(rows, pairs)
        if isinstance(weight, Fp8Weight):
            scaled = {"scale": weight.input_scale, "most_amax": weight.most_amax}
            own = quantize(rows, grouped=weight.in_blocks, **scaled)
        around = {"bias": self._bias, "gate": self._gate}
        return grouped_linear(own, weight, pairs, tile, self._dtype, **around)

    def _by_library(self, rows: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        if pairs.of_tokens:
            rows = rows.index_select(0, pairs.order // pairs.active)
        by_expert = self._numbers.view(self._experts, -1, rows.shape[1]).transpose(1, 2)
        product = F.grouped_mm(rows, by_expert, offs=pairs.ends)
        if self._gate is not None:
            assert self._gate.function != "clamped", "of our own kernel alone"
            product = activation_mul(product, self._gate.function)
        if pairs.of_tokens:
            return product
        return torch.empty_like(product).index_copy_(0, pairs.order.long(), product)

    @property
    def _numbers(self) -> torch.Tensor:
        return self._weight if isinstance(self._weight, torch.Tensor) else self._weight[0]

    def _candidates(self, room: float) -> list[GroupedTile | None]:
        """The ways that there are on a GPU whose blocks have `room` bytes of shared memory."""
        gate, dense = self._gate, isinstance(self._weight, torch.Tensor)
        if self._dtype == torch.float32:
            return [GROUPED_FLOAT32_TILE]
        parts = 1 if gate is None else 2
        plain = self._bias is None and (gate is None or gate.function != "clamped")
        library = [None] if dense and plain and self._dtype == torch.bfloat16 else []
        own = (t for t in GROUPED_TILES if shared_bytes(t, self._weight, self._dtype) <= room)
        return [*library, *(tile._replace(outputs=tile.outputs // parts) for tile in own)]

    def _measured(self, watch: Stopwatch) -> list[GroupedTile | None]:
        """The fastest way for each of `GROUPED_MEASURED_PAIRS`, of which as many are of each expert
        as chance has it. The numbers of rows are random: the bits that change decide a processor's
        power, and so its speed."""
        device, size = self._numbers.device, self._numbers.shape[1]
        room = max_shared_mem(device.index) if device.type == "cuda" else math.inf
        candidates, ways = self._candidates(room), list[GroupedTile | None]()
        size *= 4 if isinstance(self._weight, PackedFp4) else 1
        for count in GROUPED_MEASURED_PAIRS if len(candidates) > 1 else GROUPED_MEASURED_PAIRS[:1]:
            rows = torch.randn(count, size, dtype=self._dtype, device=device)
            chosen = torch.randint(self._experts, (count, 1), device=device)
            pairs = Pairs(*group(chosen, self._experts), 1, of_tokens=self._gate is not None)
            run = partial(self._multiply, rows, pairs)
            seconds = [watch.seconds(partial(run, tile)) for tile in candidates]
            ways.append(candidates[seconds.index(min(seconds))])
        _logger.info(
            "grouped product of %d experts, %d features: own kernel for %d of %d numbers of tokens",
            *(self._experts, size, sum(tile is not None for tile in ways), len(ways)),
        )
        return ways
