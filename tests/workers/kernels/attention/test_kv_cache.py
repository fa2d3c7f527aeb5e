"""Writes of the KV cache against torch's, and that they touch nothing else."""

import pytest
import torch

from tests.workers.attention_problems import Heads
from tests.workers.kernels.cases import cases, drawn
from workers.kernels.attention.kv_cache import copy_blocks, rotate_and_cache, write_kv
from workers.layers.norm import QKNorm

PAGE = 4
SHAPES = cases(
    {str(heads): heads for heads in [(4, 4, 64), (4, 1, 80), (6, 2, 96), (7, 1, 128), (2, 1, 256)]},
    usual={"(4, 1, 80)", "(7, 1, 128)"},
)


def angles(rotary_dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of nine positions, and those of five tokens."""
    turns = 6 * torch.rand(9, rotary_dim // 2)
    table = torch.cat((turns.cos(), turns.sin()), dim=1).to(device)
    return table, torch.tensor([3, 0, 8, 8, 0], device=device)


def rotated(heads: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[T, H, D] in float64: each pair as a complex number, times its angle's."""
    low, high = heads.double().chunk(2, dim=2)
    cos, sin = table[positions].double()[:, None].chunk(2, dim=2)
    turned = torch.complex(low, high) * torch.complex(cos, sin)
    return torch.cat((turned.real, turned.imag), dim=2)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_rotate_and_cache(
    *,
    shape: Heads,
    in_place: bool,
    dtype: torch.dtype,
    rounding: float,
    device: torch.device,
) -> None:
    num_heads, kv_heads, head_dim = shape
    heads = drawn(5, num_heads + 2 * kv_heads, head_dim, dtype=dtype, device=device)
    table, positions = angles(head_dim, device)
    kv_indices = torch.tensor([11, 2, 7, 0], device=device)
    keys = torch.full((3, PAGE, kv_heads, head_dim), 7.0, device=device, dtype=dtype)
    values = torch.full_like(keys, -7.0)
    before = heads.clone()

    out = heads if in_place else torch.full_like(heads, 9.0)
    target = (kv_indices, keys, values)
    rotate_and_cache(heads, table, positions, num_heads, out, target)
    if not in_place:
        assert torch.equal(heads, before)
        assert out[4].eq(9).all()
        heads = torch.cat((out[:4], before[4:]))

    turning = num_heads + kv_heads
    exact = rotated(before[:4, :turning], table, positions[:4])
    torch.testing.assert_close(heads[:4, :turning].double(), exact, rtol=rounding, atol=1e-6)
    assert torch.equal(heads[:, turning:], before[:, turning:])
    assert torch.equal(heads[4], before[4])
    expected_keys, expected_values = torch.full_like(keys, 7.0), torch.full_like(keys, -7.0)
    expected_keys.flatten(0, 1)[kv_indices] = heads[:4, num_heads:turning]
    expected_values.flatten(0, 1)[kv_indices] = before[:4, turning:]
    assert torch.equal(keys, expected_keys)
    assert torch.equal(values, expected_values)


@pytest.mark.parametrize(("normed", "rotary"), [(True, 1.0), (True, 0.5), (False, 0.75)])
@pytest.mark.parametrize("shape", SHAPES)
def test_normed_and_rotated_in_part(
    *,
    shape: Heads,
    normed: bool,
    rotary: float,
    dtype: torch.dtype,
    rounding: float,
    device: torch.device,
) -> None:
    num_heads, kv_heads, head_dim = shape
    rotary_dim = int(head_dim * rotary)
    heads = 3 * drawn(5, num_heads + 2 * kv_heads, head_dim, dtype=dtype, device=device)
    table, positions = angles(rotary_dim, device)
    weights = 1 + torch.rand(2, head_dim, device=device)  # float32, whatever the heads are
    norm = QKNorm(weights[0], weights[1], 1e-3) if normed else None

    exact = heads.double()
    turning = num_heads + kv_heads
    if norm is not None:
        exact = exact * (exact.square().mean(2, keepdim=True) + norm.eps).rsqrt()
        exact[:, :num_heads] *= norm.query
        exact[:, num_heads:] *= norm.key
    exact[:, :, :rotary_dim] = rotated(exact[:, :, :rotary_dim], table, positions)

    cached = heads.clone()
    kv_indices = torch.arange(5, device=device)
    keys, values = torch.empty(2, 2, PAGE, kv_heads, head_dim, device=device, dtype=dtype)
    target = (kv_indices, keys, values)
    rotate_and_cache(cached, table, positions, num_heads, cached, target, norm)
    out = torch.full_like(heads, 9.0)
    rotate_and_cache(heads, table, positions, num_heads, out, None, norm)
    got = out[:, :turning].double()
    torch.testing.assert_close(got, exact[:, :turning], rtol=rounding, atol=4e-6)
    assert torch.equal(out[:, turning:], heads[:, turning:])
    assert torch.equal(out, cached)
    assert torch.equal(keys.flatten(0, 1)[:5], out[:, num_heads:turning])


def test_write_kv(dtype: torch.dtype, device: torch.device) -> None:
    packed = drawn(3, 9, 80, dtype=dtype, device=device)
    new_keys, new_values = packed[:, 3:6], packed[:, 6:]
    kv_indices = torch.tensor([5, 6, 1], device=device)
    keys, values = torch.zeros(2, 2, PAGE, 3, 80, device=device, dtype=dtype)
    write_kv(new_keys, new_values, (kv_indices, keys, values))
    for cache, new in ((keys, new_keys), (values, new_values)):
        expected = torch.zeros_like(cache)
        expected.flatten(0, 1)[kv_indices] = new
        assert torch.equal(cache, expected)


@pytest.mark.parametrize("block", [(16, 2, 24), (65, 2, 128)], ids=str)
def test_copy_blocks(block: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """In all layers at once, by one program and by several."""
    cache = drawn(3, 2, 6, *block, dtype=dtype, device=device)
    want = cache.clone()
    want[:, :, [0, 4]] = cache[:, :, [5, 2]]
    copy_blocks(cache, torch.tensor([[5, 0], [2, 4]], dtype=torch.int32, device=device))
    assert torch.equal(cache, want)
