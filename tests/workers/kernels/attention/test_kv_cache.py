"""Writes of the KV cache against torch's, and that they touch nothing else."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from tests.workers.attention_problems import Heads
from tests.workers.kernels.cases import cases, drawn
from workers.contract.model_config import QKNormKind
from workers.kernels.attention.kv_cache import KVTarget, copy_blocks, rotate_and_cache, write_kv
from workers.layers.norm import QKNorm
from workers.layers.rotary import RotationTable

PAGE = 4
SHAPES = cases(
    [(4, 4, 64), (4, 1, 80), (6, 2, 96), (7, 1, 128), (2, 1, 256)],
    usual={"(4, 1, 80)", "(7, 1, 128)"},
)


POSITIONS = torch.tensor([3, 0, 8, 8, 0])


def drawn_rotation(
    rotary_dim: int, whole_dim: int, device: torch.device, *, grows: bool = False
) -> RotationTable | None:
    """Of nine positions; None of no dimension."""
    turns = 6 * torch.rand(9, rotary_dim // 2)
    table = torch.cat((turns.cos(), turns.sin()), dim=1).to(device)
    factors = 1 + torch.rand(9, device=device) if grows else None
    return RotationTable(table, whole_dim // 2, factors) if rotary_dim else None


def normed_values(values: torch.Tensor, norm: QKNorm | None) -> torch.Tensor:
    if norm is None or not norm.values:
        return values.clone()
    return F.rms_norm(values.float(), values.shape[2:], eps=norm.eps).to(values.dtype)


def rotate(heads: torch.Tensor, rotation: RotationTable, positions: torch.Tensor) -> None:
    """Rotate [T, H, D] in float64: each pair as a complex number, times its angle's."""
    cos, sin = rotation.table[positions].double()[:, None].chunk(2, dim=2)
    low = heads[:, :, : cos.shape[2]]
    high = heads[:, :, rotation.apart :][:, :, : cos.shape[2]]
    turned = torch.complex(low, high) * torch.complex(cos, sin)
    low[:], high[:] = turned.real, turned.imag


def normalised(
    heads: torch.Tensor, num_heads: int, norm: QKNorm | None, *, rotated: bool
) -> torch.Tensor:
    """Queries and keys [T, H + Hkv, D], in rows as long as the weights; as they are if the norm is
    not for heads that are `rotated`, or not."""
    if norm is None or norm.rotated != rotated:
        return heads.clone()
    parts = []
    for part, weight in ((heads[:, :num_heads], norm.query), (heads[:, num_heads:], norm.key)):
        rows = part.reshape(len(part), -1, len(weight))
        scaled = rows * (rows.square().mean(2, keepdim=True) + norm.eps).rsqrt() * weight
        parts.append(scaled.view(part.shape))
    return torch.cat(parts, dim=1)


def turned_exactly(
    heads: torch.Tensor,
    num_heads: int,
    norm: QKNorm | None,
    rotation: RotationTable | None,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Queries and keys [T, H + Hkv, D] in float64; queries times the factors of their places."""
    exact = normalised(heads.double(), num_heads, norm, rotated=False)
    if rotation is not None:
        rotate(exact, rotation, positions)
    exact = normalised(exact, num_heads, norm, rotated=True)
    if rotation is not None and rotation.query_factors is not None:
        exact[:, :num_heads] *= rotation.query_factors[positions, None, None]
    return exact


@pytest.mark.parametrize(
    ("normed", "rotary", "in_place"),
    [
        (None, 1.0, True),
        (None, 1.0, False),
        ("head", 1.0, True),
        ("head", 0.5, False),
        (None, 0.75, True),
        (None, 0.0, False),
        ("head", 0.0, True),
        ("width", 1.0, True),
        ("width", 0.5, False),
        ("rotated", 1.0, False),
        ("rotated", 0.75, True),
        ("values", 0.25, True),
        ("values", 0.25, False),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_rotate_and_cache(
    *,
    shape: Heads,
    normed: QKNormKind | Literal["values"] | None,
    rotary: float,
    in_place: bool,
    dtype: torch.dtype,
    rounding: float,
    device: torch.device,
) -> None:
    num_heads, kv_heads, head_dim = shape
    turning, rotary_dim = num_heads + kv_heads, int(head_dim * rotary)
    heads = 3 * drawn(5, turning + kv_heads, head_dim, dtype=dtype, device=device)
    positions = POSITIONS.to(device)
    with_values = normed == "values"  # and then pairs of a whole head
    rows = (num_heads, kv_heads) if normed == "width" else (1, 1)
    # Weights are float32, whatever the heads are.
    query, key = (1 + torch.rand(row * head_dim, device=device) for row in rows)
    norm = QKNorm(query, key, 1e-3, normed == "rotated", with_values) if normed else None

    whole_dim, grows = head_dim if with_values else rotary_dim, rotary < 1 and normed != "rotated"
    rotation = drawn_rotation(rotary_dim, whole_dim, device, grows=grows)
    exact = turned_exactly(heads[:, :turning], num_heads, norm, rotation, positions)
    given_values = normed_values(heads[:, turning:], norm)

    kv_indices = torch.tensor([11, 2, 7, 0], device=device)
    keys = torch.full((3, PAGE, kv_heads, head_dim), 7.0, device=device, dtype=dtype)
    values = torch.full_like(keys, -7.0)
    before, untouched = heads.clone(), torch.full_like(heads, 9.0)
    out, target = heads if in_place else untouched.clone(), KVTarget(kv_indices, keys, values)
    rotate_and_cache(heads, rotation, positions, num_heads, out, target, norm)
    assert in_place or torch.equal(heads, before)
    assert torch.equal(out[4], before[4] if in_place else untouched[4])
    cached = (keys, 7.0, out[:4, num_heads:turning]), (values, -7.0, given_values[:4])
    for cache, unused, new in cached:
        expected = torch.full_like(cache, unused)
        expected.flatten(0, 1)[kv_indices] = new
        torch.testing.assert_close(cache, expected, rtol=rounding * with_values, atol=0)

    rotate_and_cache(before, rotation, positions, num_heads, untouched, None, norm)
    got, got_values = untouched[:, :turning].double(), untouched[:, turning:]
    torch.testing.assert_close(got, exact, rtol=rounding, atol=4e-6)
    torch.testing.assert_close(got_values, given_values, rtol=rounding * with_values, atol=0)
    assert torch.equal(out[:4], untouched[:4])


def test_a_layer_with_another_cache_rotates_queries_alone(device: torch.device) -> None:
    queries = drawn(5, 3, 80, dtype=torch.float32, device=device)
    weight, rotation = 1 + torch.rand(80, device=device), drawn_rotation(40, 80, device)
    norm = QKNorm(weight, weight, 1e-3, values=True)
    exact = turned_exactly(queries, 3, norm, rotation, POSITIONS.to(device))
    rotate_and_cache(queries, rotation, POSITIONS.to(device), 3, queries, None, norm)
    torch.testing.assert_close(queries.double(), exact, rtol=1e-5, atol=4e-6)


def test_write_kv(dtype: torch.dtype, device: torch.device) -> None:
    packed = drawn(3, 9, 80, dtype=dtype, device=device)
    new_keys, new_values = packed[:, 3:6], packed[:, 6:]
    kv_indices = torch.tensor([5, 6, 1], device=device)
    keys, values = torch.zeros(2, 2, PAGE, 3, 80, device=device, dtype=dtype)
    write_kv(new_keys, new_values, KVTarget(kv_indices, keys, values))
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
