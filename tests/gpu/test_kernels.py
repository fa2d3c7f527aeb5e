"""Fused kernels at the sizes of real models, against float32."""

import pytest
import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.device.choices import Choices
from workers.kernels.linear.fused import Norm, fused_kernels
from workers.layers.activations import ACTIVATIONS, FUSED
from workers.layers.layer import Placement
from workers.layers.linear import Linear
from workers.layers.norm import LayerNorm, QKNorm, RMSNorm
from workers.layers.rotary import RotationTable

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
EPS = 1e-6
ROUNDING = 2**-8
"""The relative error of one rounding to bfloat16."""

HEADS = [(12, 12, 64), (8, 8, 80), (32, 32, 96), (32, 8, 128), (8, 4, 256)]
"""(query heads, KV heads, head size)"""

ROWS = [*range(1, 71), 300, 8192]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor, roundings: int = 1) -> None:
    assert got.dtype == torch.bfloat16
    tolerance = roundings * ROUNDING
    torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


def normed(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(heads, (heads.shape[-1],), weight.float(), EPS)


def turned(heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rotary = table.shape[1]
    cos, sin = table[positions][:, None].chunk(2, dim=2)
    low, high = heads[..., :rotary].chunk(2, dim=2)
    first = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=2)
    return torch.cat((first, heads[..., rotary:]), dim=2)


@pytest.mark.parametrize("rotary", [1.0, 0.75])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", HEADS)
def test_normed_rotated_and_cached(
    shape: tuple[int, int, int], weights: torch.dtype, rotary: float
) -> None:
    from workers.kernels.attention.kv_cache import KVTarget, rotate_and_cache

    num_heads, kv_heads, size = shape
    angles = 6 * torch.rand(64, int(size * rotary) // 2, device=DEVICE)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    rotation = RotationTable(table, table.shape[1] // 2)
    norm = QKNorm(drawn(size, dtype=weights), drawn(size, dtype=weights), EPS)
    for rows in ROWS:
        qkv = drawn(rows, num_heads + 2 * kv_heads, size)
        positions = torch.randint(0, 64, (rows,), device=DEVICE)
        queries, keys, values = qkv.float().split([num_heads, kv_heads, kv_heads], dim=1)
        heads = torch.cat((normed(queries, norm.query), normed(keys, norm.key)), dim=1)
        want = torch.cat((turned(heads, table, positions), values), dim=1)
        keys, values = torch.zeros(2, -(-rows // 16), 16, kv_heads, size, device=DEVICE).bfloat16()
        indices = torch.randperm(rows, device=DEVICE)
        out = torch.empty_like(qkv)
        target = KVTarget(indices, keys, values)
        rotate_and_cache(qkv, rotation, positions, num_heads, out, None, norm)
        rotate_and_cache(qkv, rotation, positions, num_heads, qkv, target, norm)
        close(qkv, want)
        assert torch.equal(out, qkv)
        cached = [cache.flatten(0, 1)[indices] for cache in (keys, values)]
        assert torch.equal(torch.cat(cached, dim=1), qkv[:, num_heads:])


def filled(layer: Linear | RMSNorm | LayerNorm) -> dict[str, torch.Tensor]:
    """Fills a layer's weights, products' so that their outputs have a variance of about 1."""
    weights = layer.weights()
    for weight in weights.values():
        weight.normal_(std=weight.shape[1] ** -0.5 if weight.dim() == 2 else 1.0)
    return weights


@pytest.mark.parametrize(("inputs", "outputs"), [(3584, 4608), (768, 2304), (2560, 80)])
def test_products_with_bias_norm_and_residual(inputs: int, outputs: int) -> None:
    placement = Placement(DEVICE, torch.bfloat16)
    linear = Linear(inputs, {"a": outputs}, placement, bias=True)
    norm = RMSNorm("n", inputs, EPS, placement)
    weight, bias = (part.float() for part in filled(linear).values())
    (scale,) = filled(norm).values()
    linear.pack()
    for count in ROWS:
        rows, residual = drawn(count, inputs), drawn(count, outputs)
        product = F.linear(rows.float(), weight, bias)
        close(linear(rows), product, 2)
        close(linear.add_to(residual.clone(), rows), residual.float() + product, 8)
        close(linear(rows, norm), F.linear(normed(rows.float(), scale), weight, bias), 8)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("biased", [True, False])
def test_gates(name: ActivationName, biased: bool) -> None:
    kernels, function = fused_kernels(DEVICE, Choices()), FUSED[ACTIVATIONS[name]]
    assert kernels is not None
    weight, scale = drawn(2 * 2048, 1024) / 32, drawn(1024)
    bias = drawn(2 * 2048) if biased else None
    many = kernels.gated_product(weight, bias, function)
    for count in [*range(1, 33), 300, 1024, 8192]:
        rows = drawn(count, 1024)
        added = None if bias is None else bias.float()
        gate, up = F.linear(rows.float(), weight.float(), added).chunk(2, dim=1)
        close(many(rows), ACTIVATIONS[name](gate) * up, 8)
        if count <= 32:
            inputs = normed(rows.float(), scale)
            gate, up = F.linear(inputs, weight.float(), added).chunk(2, dim=1)
            norm = Norm(scale, EPS)
            got = kernels.skinny_linear(rows, weight, bias=bias, norm=norm, gate=function)
            close(got, ACTIVATIONS[name](gate) * up, 12)


@pytest.mark.parametrize("rows", [2, 300, 8192])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
def test_gelu_at_the_end_of_a_product_is_nearer_than_of_rounded_sums(
    name: ActivationName, dtype: torch.dtype, rows: int
) -> None:
    function = ACTIVATIONS[name]
    placement = Placement(DEVICE, dtype)
    layer = Linear(768, {"up": 3072}, placement, bias=True, function=function)
    own = {key: weight.normal_() for key, weight in layer.weights().items()}
    weight, bias = own["up.weight"].mul_(768**-0.5), own["up.bias"]
    inputs = drawn(rows, 768, dtype=dtype)
    exact = function(F.linear(inputs.float(), weight.float(), bias.float()))
    apart = function(F.linear(inputs, weight, bias))
    layer.pack()
    errors = [(got.float() - exact).square().mean() for got in (layer(inputs), apart)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("size", [384, 768, 1024, 2560, 5376])
def test_norms_and_sums(size: int) -> None:
    placement = Placement(DEVICE, torch.bfloat16)
    rms, layer = RMSNorm("n", size, EPS, placement), LayerNorm("n", size, EPS, placement)
    (scale,) = filled(rms).values()
    weight, bias = (part.float() for part in filled(layer).values())
    for count in ROWS:
        rows, residual = drawn(count, size), drawn(count, size)
        total = residual.float() + rows.float()
        want = F.layer_norm(total, (size,), weight, bias, EPS)
        close(layer(rows), F.layer_norm(rows.float(), (size,), weight, bias, EPS), 1)
        close(layer(rows, residual), want, 1)
        want = residual.float() + normed(rows.float(), scale)
        close(rms.add_to(residual, rows), want)
