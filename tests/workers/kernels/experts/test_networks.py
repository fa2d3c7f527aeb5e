"""Networks of experts with all kernels together, against the loop over experts on a CPU."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases, drawn
from tests.workers.kernels.experts.networks import (
    CONFIGS,
    Kind,
    bound,
    network,
    relative_error,
    rows_of,
)
from workers.device.choices import Choices
from workers.device.tuning import GROUPED_TILES, GroupedTile
from workers.kernels.experts import grouped_product
from workers.kernels.experts.grouped_product import GroupedProduct
from workers.kernels.experts.kernels import ExpertKernels
from workers.kernels.experts.routing import group
from workers.kernels.linear.fused import FusedGate, FusedKernels
from workers.layers.activations import gated
from workers.layers.layer import Placement
from workers.layers.linear_method import Groups

TILE = GroupedTile(16, 128, 128, 4, 2)


class OneTile(Choices):
    def get(self, what: str, *_: Any) -> Any:
        return [TILE] if what == "grouped product" else [[None], [None]]


class OneWay(Choices):
    """The library."""

    def get(self, *_: Any) -> Any:
        return [None]


@pytest.mark.parametrize(
    ("kind", "count"),
    cases(
        {kind: kind for kind in CONFIGS},
        (1, 9),
        usual={"shared-1", "groups-9", "clamped-9", "fp8-9", "fp8_blocks-1", "mxfp4-9"},
    ),
)
def test_kernels_and_the_loop(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kind: Kind, count: int
) -> None:
    want = network(kind, Placement(torch.device("cpu"), torch.float32))
    if device.type == "cpu":  # an Ada: cuBLAS beside the gate's kernel, and products in FP8
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(Placement, "kernels", FusedKernels(OneTile()))
    monkeypatch.setattr(Placement, "expert_kernels", ExpertKernels(OneTile()))
    got = network(kind, Placement(device, torch.float16, OneTile()))
    rows = rows_of(count, torch.float16, device)
    own = got.add_to(rows.clone(), rows)
    cpu = rows.float().cpu()
    assert relative_error(own, want.add_to(cpu.clone(), cpu)) < bound(kind)


@pytest.mark.parametrize("gate", [None, FusedGate("silu")])
def test_the_library(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, gate: FusedGate | None
) -> None:
    """In bfloat16, where experts have no bias and no gate of their own kind."""
    monkeypatch.setattr(grouped_product, "activation_mul", lambda both, _: gated(F.silu, both))
    weight = drawn(6 * 64, 32, dtype=torch.bfloat16, device=device)
    made = GroupedProduct(weight, None, gate, torch.bfloat16, 6, OneWay())
    least, most = made._candidates(64 << 10), made._candidates(256 << 10)
    assert least[0] is most[0] is None
    assert (len(least), len(most)) == (2, len(GROUPED_TILES) + 1)
    for function in (None, FusedGate("clamped")):
        bias = None if function else weight[:, 0].contiguous()
        other = GroupedProduct(weight, bias, function, torch.bfloat16, 6, OneWay())
        assert None not in other._candidates(math.inf)
    chosen = torch.tensor([[0, 4], [4, 2], [0, 5]], device=device)
    groups = Groups(*group(chosen, 6), 2)
    rows = drawn(3, 32, dtype=torch.bfloat16, device=device)
    want = torch.einsum("ni,nkoi->nko", rows.float(), weight.float().view(6, 64, 32)[chosen])
    want = want.flatten(0, 1)
    by_pair = want if gate is None else gated(F.silu, want)
    order = groups.order.long()
    got = made.of_tokens(rows, groups)
    torch.testing.assert_close(got.float(), by_pair[order], rtol=2e-2, atol=5e-2)
    if gate is None:
        of_pairs = made.of_pairs(rows.repeat_interleave(2, 0)[order], groups)
        torch.testing.assert_close(of_pairs.float(), by_pair, rtol=2e-2, atol=5e-2)
