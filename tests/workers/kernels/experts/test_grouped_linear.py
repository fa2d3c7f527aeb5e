"""Products grouped by experts against torch in float32, with experts that have no rows."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases, drawn
from tests.workers.kernels.linear.fp8_weights import (
    dequantized,
    dequantized_rows,
    fp8_weight,
    quantized,
)
from workers.contract.experts import Clamp
from workers.device.tuning import GroupedTile
from workers.kernels.experts.grouped_linear import Pairs, grouped_linear, packed
from workers.kernels.experts.routing import group
from workers.kernels.linear.fused import FusedGate, Mxfp4Weight
from workers.layers.activations import gated
from workers.layers.mxfp4_method import dequantised

Kind = Literal["float32", "float16", "outputs", "blocks", "fp4"]
KINDS: dict[str, Kind] = {kind: kind for kind in ("float32", "float16", "outputs", "blocks", "fp4")}
EXPERTS, ACTIVE = 5, 2
FEW, MANY = GroupedTile(16, 32, 32, 4, 2), GroupedTile(64, 32, 32, 4, 2)


def chosen_by(tokens: int, device: torch.device) -> torch.Tensor:
    """Two experts a token, never the third, and mostly the last."""
    draw = torch.Generator().manual_seed(tokens)
    first = torch.randint(0, 2, (tokens, 1), generator=draw)
    second = torch.where(torch.rand(tokens, 1, generator=draw) < 0.2, 3, 4)
    return torch.cat([first, second], dim=1).int().to(device)


def fp4_weight(out: int, inputs: int, device: torch.device) -> Mxfp4Weight:
    blocks = torch.randint(0, 256, (out, inputs // 2), dtype=torch.uint8)
    scales = torch.randint(119, 124, (out, inputs // 32), dtype=torch.uint8)
    return Mxfp4Weight(blocks.to(device), scales.to(device))


@pytest.mark.parametrize(
    ("kind", "tokens", "gate"),
    cases(
        KINDS,
        (1, 3, 70),
        {"plain": None, "silu": FusedGate("silu"), "clamped": FusedGate("clamped", 1.7, 1.5)},
        usual={
            "float32-1-plain", "float32-70-silu", "float16-3-clamped", "outputs-3-silu",
            "outputs-70-plain", "blocks-3-plain", "blocks-70-silu", "fp4-1-clamped", "fp4-70-plain",
        },
    ),
)  # fmt: skip
@pytest.mark.parametrize("of_tokens", [True, False])
def test_each_expert_multiplies_its_rows(
    device: torch.device, kind: Kind, tokens: int, gate: FusedGate | None, of_tokens: bool
) -> None:
    out, inputs = (256, 256) if kind == "blocks" else (72, 160)
    dtype = torch.float32 if kind == "float32" else torch.float16
    chosen = chosen_by(tokens, device)
    order, ends = group(chosen, EXPERTS)
    assert int(ends[2] - ends[1]) == 0
    count = tokens if of_tokens else tokens * ACTIVE
    rows = given = drawn(count, inputs, dtype=dtype, device=device)
    if kind in ("outputs", "blocks"):
        given = quantized(rows.float(), grouped=kind == "blocks")
        rows = dequantized_rows(given)
        weight = fp8_weight(EXPERTS * out, inputs, kind, device)
        wide = dequantized(weight)
    elif kind == "fp4":
        stored = fp4_weight(EXPERTS * out, inputs, device)
        weight, wide = packed(stored), dequantised(stored, torch.float32)
    else:
        weight = drawn(EXPERTS * out, inputs, dtype=dtype, device=device) / inputs**0.5
        wide = weight.float()
    bias = drawn(EXPERTS * out, dtype=dtype, device=device)
    pairs = Pairs(order, ends, ACTIVE, of_tokens=of_tokens)
    tile = MANY if tokens == 70 else FEW
    got = grouped_linear(given, weight, pairs, tile, dtype, bias=bias, gate=gate)
    by_pair = chosen.flatten()[order.long()].long()
    sources = order.long() // ACTIVE if of_tokens else torch.arange(count, device=device)
    own = rows.float()[sources]
    want = torch.einsum("mi,moi->mo", own, wide.view(EXPERTS, out, inputs)[by_pair])
    want += bias.float().view(EXPERTS, out)[by_pair]
    if gate is not None:
        function = Clamp(alpha=1.7, limit=1.5) if gate.function == "clamped" else F.silu
        want = gated(function, want)
    if not of_tokens:
        want = torch.empty_like(want).index_copy_(0, order.long(), want)
    assert got.dtype == dtype
    bound = 1e-4 if kind == "float32" else 1e-2
    torch.testing.assert_close(got.float(), want, rtol=bound, atol=bound)
