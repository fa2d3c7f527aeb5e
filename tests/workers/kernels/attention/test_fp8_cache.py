"""Attention over keys and values in FP8, and their writes: exact but for the rounding itself."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.workers.attention.reference import assert_attended, assert_solved, solution
from tests.workers.attention.test_attention_libraries import flash_attn_fwd
from tests.workers.attention_problems import Heads, Problem, attention_needs
from tests.workers.kernels.attention.test_paged_decode import attend
from tests.workers.kernels.attention.test_paged_prefill import attend as attend_chunks
from tests.workers.kernels.attention.test_shared_prefix import computed
from tests.workers.kernels.cases import cases, drawn
from tests.workers.kernels.grouped_rows import Group, grouped
from workers.attention.backends import flash_attn_fp8
from workers.attention.backends.flash_attn_fp8 import FlashAttention4FP8Backend
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import AttentionNeeds, LayerCache
from workers.attention.fp8_numbers import FP8, dequantized, packed, quantized, unpacked
from workers.device.tuning import PrefillTile
from workers.kernels.attention.kv_cache import KVTarget, rotate_and_cache, write_kv
from workers.kernels.attention.paged_decode import Launch
from workers.layers.norm import QKNorm
from workers.layers.rotary import RotationTable

HEADS = [(4, 4, 64), (4, 1, 80), (6, 2, 96), (7, 1, 128)]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20},
    "softcap": {"softcap": 2.0},
    "all": {"window": 20, "softcap": 3.0, "scale": 0.4},
}
GROUPS = [Group(48, [(0, 1), (15, 1), (70, 1)]), Group(0, [(20, 1)]), Group(16, [(3, 1)] * 9)]
CHUNKS = [Group(64, [(0, 2), (9, 3), (16, 1)]), Group(32, [(0, 40), (7, 30)]), Group(0, [(5, 9)])]


def needs(device: torch.device, heads: Heads = (4, 2, 64), **changes: Any) -> AttentionNeeds:
    given: dict[str, Any] = {"dtype": torch.float16, "block_size": 16, "fp8_cache": True}
    return attention_needs(heads, **given | changes, device=device.type)


@pytest.mark.parametrize("heads", cases(HEADS, usual={"(4, 1, 80)", "(7, 1, 128)"}))
def test_decode(heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
    want = needs(device, heads, dtype=dtype)
    problem = Problem([(context - 1, 1) for context in (64, 1, 65, 150, 16, 33)], want)
    assert_solved(attend(problem), problem)


@pytest.mark.parametrize(
    ("page", "splits"), cases((1, 16, 24, 64), (1, 2, 5), usual={"24-5", "64-1"})
)
def test_pages_and_splits(page: int, splits: int, device: torch.device) -> None:
    problem = Problem([(129, 1), (0, 1), (31, 1), (32, 1)], needs(device, block_size=page))
    assert_solved(attend(problem, Launch(tile=32, warps=4, stages=2, splits=splits)), problem)


@pytest.mark.parametrize("run", [attend, attend_chunks], ids=["decode", "chunks"])
def test_a_large_scale_leaves_other_tokens_their_weights(
    run: Callable[..., torch.Tensor], device: torch.device
) -> None:
    problem = Problem([(149, 1)], needs(device))
    problem.row_values[0][3] = 0
    cache = problem.cache(filled=True)
    assert cache.scales is not None
    keys, values = unpacked(cache.scales)
    values[problem.tables[0][0], :, 3] = 2.0**23
    cache = cache._replace(scales=packed(keys.contiguous(), values.contiguous()))
    assert_solved(run(problem, cache=cache), problem)


@pytest.mark.parametrize("heads", cases(HEADS, usual={"(4, 1, 80)"}))
def test_chunks(heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
    problem = Problem([(0, 9), (70, 1), (3, 13), (0, 1)], needs(device, heads, dtype=dtype))
    assert_solved(attend_chunks(problem), problem)


@pytest.mark.parametrize("page", [24, 64])
def test_pages_of_chunks(page: int, device: torch.device) -> None:
    problem = Problem([(29, 37), (0, 33), (32, 1)], needs(device, (6, 2, 64), block_size=page))
    assert_solved(attend_chunks(problem, PrefillTile(16, 32, 4, 2)), problem)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kinds(kind: dict[str, Any], device: torch.device) -> None:
    """Steps of the backend, which writes its keys and values itself."""
    want = needs(device, (4, 2, 24), dtype=torch.float32, **kind)
    problem = Problem([(70, 1), (18, 1), (19, 3), (60, 40), (0, 21)], want)
    attended = problem.solve(TritonBackend(want))
    torch.testing.assert_close(attended.double(), solution(problem), atol=2e-5, rtol=0)


def test_shared_prefixes(device: torch.device) -> None:
    problem = grouped(GROUPS, needs(device, (8, 2, 64)))
    assert_solved(attend(problem, prefix=computed(problem, 2)), problem)
    problem = grouped(CHUNKS, needs(device))
    assert_solved(attend_chunks(problem, prefix=computed(problem, 2)), problem)


@pytest.mark.usefixtures("any_saving")
def test_chunks_that_no_copy_has_room_for_share_nothing(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind decode rows that share a prefix: what is known of prefixes is of these alone."""
    library = ModuleType("flash_attn.cute.interface")
    vars(library)["_flash_attn_fwd"] = None
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setattr(flash_attn_fp8, "FP8_SCRATCH_TOKENS", 16)
    problem = grouped([Group(48, [(0, 1), (2, 1), (5, 1), (1, 4), (0, 9)])], needs(device))
    backend = FlashAttention4FP8Backend(problem.want)
    assert backend.plan_paged(problem.step).prefixes is not None
    assert_solved(problem.solve(backend), problem)


@pytest.mark.parametrize("room", [1 << 16, 128, 112], ids=["wide", "just_enough", "too_small"])
@pytest.mark.parametrize(("page", "window"), [(16, None), (24, None), (16, 20)])
def test_flash_attention_over_a_copy(
    page: int,
    window: int | None,
    room: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks see copies of their blocks, and our own kernel where these are too many."""
    library, calls = ModuleType("flash_attn.cute.interface"), list[torch.Tensor]()

    def attend(*tensors: torch.Tensor, **options: Any) -> None:
        calls.append(options["page_table"])
        flash_attn_fwd(*tensors, **options)

    vars(library)["_flash_attn_fwd"] = attend
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setattr(flash_attn_fp8, "FP8_SCRATCH_TOKENS", room * page // 16)
    want = needs(device, block_size=page, window=window)
    problem = Problem([(70, 1), (page - 1, 2), (3 * page, 3), (0, page), (9, 1)], want, unused=9.0)
    assert_solved(problem.solve(FlashAttention4FP8Backend(want)), problem)
    assert len(calls) == (room > 112)
    for table in calls:
        assert table.tolist()[0][:2] == [0, 1]
        assert table.tolist()[1] == [2, 3, 4, 5]


@pytest.mark.parametrize("power", [-40, 20])
def test_queries_and_values_of_any_size(power: int, device: torch.device) -> None:
    """Float16 holds neither as they are."""
    want = needs(device, dtype=torch.bfloat16, scale=0.1 * 2.0**-power)
    problem = Problem([(40, 1), (20, 7)], want)
    problem.queries *= 2.0**power
    problem.row_values = [part * 2.0**power for part in problem.row_values]
    attended, exact = problem.solve(TritonBackend(want)), solution(problem)
    assert_attended(attended / 2.0**power, exact / 2.0**power, torch.bfloat16)


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
def test_a_row_that_is_not_finite_spoils_no_other(device: torch.device) -> None:
    problem = grouped(GROUPS, needs(device))
    exact = solution(problem)
    problem.queries[1] = torch.nan
    attended = attend(problem, prefix=computed(problem, 2))
    assert attended[1].isnan().all()
    others = [0, *range(2, len(attended))]
    assert_attended(attended[others], exact[others], torch.float16)


@pytest.mark.parametrize("normed", [False, True])
def test_writes(*, normed: bool, dtype: torch.dtype, device: torch.device) -> None:
    """Rotated or as they are: in FP8 as torch rounds them, and nothing beside."""
    num_heads, kv_heads, head_dim = 4, 3, 80
    heads = drawn(5, num_heads + 2 * kv_heads, head_dim, dtype=dtype, device=device)
    heads *= (2.0 ** torch.arange(-5, 5)).to(heads)[:, None]
    heads[1, -2] = 0.0
    heads[2, -1, 1:3] = torch.tensor([torch.inf, torch.nan])
    turns = 6 * torch.rand(9, head_dim // 2)
    table = torch.cat((turns.cos(), turns.sin()), dim=1).to(device)
    positions = torch.tensor([3, 0, 8, 8, 0], device=device)
    query_norm, key_norm = drawn(2, head_dim, dtype=dtype, device=device)
    norm = QKNorm(query_norm, key_norm, 1e-3) if normed else None
    cached, kv_indices = unused(kv_heads, head_dim, device), torch.tensor([11, 2, 7, 0])
    target = KVTarget(kv_indices.to(device), cached.keys, cached.values, cached.scales)
    out = torch.empty_like(heads)
    rotation = RotationTable(table, head_dim // 2)
    rotate_and_cache(heads, rotation, positions, num_heads, out, target, norm)
    for source in (out, heads):
        new_keys, new_values = source[:4].split([num_heads, kv_heads, kv_heads], dim=1)[1:]
        expected = unused(kv_heads, head_dim, device)
        finite = new_values.nan_to_num(0.0, 0.0, 0.0)
        expected.write(target.kv_indices, new_keys, finite)
        for got, exact in zip(parts(cached), parts(expected), strict=True):
            assert torch.equal(got, exact)
        write_kv(heads[:4, num_heads:-kv_heads], heads[:4, -kv_heads:], target)


def unused(kv_heads: int, head_dim: int, device: torch.device) -> LayerCache:
    """Three pages of four tokens, full of ones."""
    numbers = torch.ones(2, 3, 4, kv_heads, head_dim, device=device).to(FP8)
    scales = torch.full((3, kv_heads, 4), 0x3F803F80, dtype=torch.int32, device=device)
    return LayerCache(*numbers, scales=scales)


def parts(cached: LayerCache) -> list[torch.Tensor]:
    assert cached.scales is not None
    return [*(part.view(torch.uint8) for part in (cached.keys, cached.values)), cached.scales]


def test_rounding_is_exact_by_a_power_of_two() -> None:
    """A head's largest number is 224 to 448 of FP8, and none is off by more than 1 in 16 or, of the
    smallest, 2 ** -9 of the power."""
    heads = torch.ldexp(torch.randn(50, 3, 64), torch.randint(-100, 100, (50, 3, 1)))
    heads[0, 0], heads[1, 1, 0], heads[1, 1, 1:] = 0.0, 448.0, 1.0
    numbers, scales = quantized(heads)
    powers = scales[..., None]
    largest = numbers.float().abs().amax(2).flatten()[1:]
    assert largest.min() >= 224
    assert largest.max() <= 448
    assert scales[1, 1] == 1
    back = dequantized(numbers, scales, torch.float32)
    assert torch.equal(back, numbers.float() * powers)
    assert ((back - heads).abs() <= torch.maximum(heads.abs() / 16, powers * 2**-10)).all()
    keys, values = unpacked(packed(scales, scales.flip(0)))
    assert torch.equal(keys, scales)
    assert torch.equal(values, scales.flip(0))
    again = dequantized(*quantized(back), torch.float32)
    assert torch.equal(again, back)
