"""Attention of one query a row over a paged cache, and the merge of its splits."""

import pytest
import torch

from tests.workers.attention.reference import assert_attended, assert_solved, solution
from tests.workers.attention_problems import Heads, Problem, attention_needs
from tests.workers.kernels.cases import cases
from workers.attention.base import LayerCache
from workers.kernels.attention import paged_decode
from workers.kernels.attention.paged_decode import MAX_SPLITS, Launch, merge
from workers.step.paged_step import PrefixParts

SHAPES = [(4, 4, 64), (4, 1, 80), (6, 2, 96), (7, 1, 128), (2, 1, 256), (20, 1, 16), (8, 1, 512)]


def decoding(
    contexts: list[int], heads: Heads, dtype: torch.dtype, device: torch.device, page: int = 16
) -> Problem:
    want = attention_needs(heads, dtype=dtype, device=device.type, block_size=page)
    return Problem([(context - 1, 1) for context in contexts], want)


def attend(
    problem: Problem,
    launch: Launch | None = None,
    cache: LayerCache | None = None,
    prefix: PrefixParts | None = None,
) -> torch.Tensor:
    step, queries, kind = problem.step, problem.qkv.queries, problem.want.kind
    cache = cache or problem.cache(filled=True)
    paged = (cache.keys, cache.values, step.block_tables, step.slots, step.context_lens)
    out = torch.full_like(queries, torch.nan, memory_format=torch.contiguous_format)
    if launch is None:
        paged_decode.attend(queries, *paged, kind, out, scales=cache.scales, prefix=prefix)
    else:
        paged_decode._attend_with(launch, queries, *paged, kind, out, prefix, cache.scales)
    return out


@pytest.mark.parametrize(
    "heads", cases(SHAPES, usual={"(4, 1, 80)", "(2, 1, 256)", "(20, 1, 16)", "(8, 1, 512)"})
)
def test_decode(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    problem = decoding([64, 1, 65, 150, 16, 33], heads, dot_dtype, device)
    assert_solved(attend(problem), problem)


@pytest.mark.parametrize(
    ("page", "splits"),
    cases((1, 16, 24, 64), (1, 2, 5), usual={"1-1", "24-5", "64-1"}),
)
def test_pages_and_splits(page: int, splits: int, device: torch.device) -> None:
    """Pages smaller and larger than a tile; more splits than some rows have tiles."""
    problem = decoding([130, 1, 32, 33], (4, 2, 64), torch.float16, device, page)
    assert_solved(attend(problem, Launch(tile=32, warps=4, stages=2, splits=splits)), problem)


@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_is_written_for_a_row_without_tokens(splits: int, device: torch.device) -> None:
    problem = decoding([5, 40], (2, 1, 64), torch.float32, device)
    problem.step.context_lens[0] = 0
    attended = attend(problem, Launch(tile=16, warps=4, stages=2, splits=splits))
    assert attended[0].isnan().all()
    assert_attended(attended[1:], solution(problem)[1:], torch.float32)


def test_rows_that_share_a_slot(device: torch.device) -> None:
    problem = decoding([20] * 4, (2, 1, 64), torch.float32, device)
    problem.step.slots.fill_(int(problem.step.slots[0]))
    problem.row_keys, problem.row_values = problem.row_keys[:1] * 4, problem.row_values[:1] * 4
    assert_solved(attend(problem), problem)


def test_the_whole_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By shapes alone: split while programs are few, never beyond tiles of the longest context."""
    monkeypatch.setattr(paged_decode, "processors", lambda device: 132)
    keys = torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)

    def splits(rows: int, max_blocks: int, least: int = 1) -> int:
        queries = keys.new_empty(rows, 32, 128)
        return paged_decode._launch(queries, keys, max_blocks * 16, least).splits

    assert splits(256, 2048) == 1
    assert splits(1, 2048) == 49
    assert splits(1, 40) == 10
    assert [splits(rows, 2048) for rows in (8, 12, 16, 17, 33)] == [6, 4, 3, 1, 1]
    assert splits(64, 2048, least=16) == 16
    assert splits(1, 2048, least=16) == 49


@pytest.mark.gpu
def test_a_captured_launch_is_right_for_other_lengths(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    problem = decoding([3000, 700, 5], (32, 8, 128), torch.float16, device)
    cache, lengths = problem.cache(filled=True), problem.step.context_lens.clone()
    problem.step.context_lens.fill_(1)
    attend(problem, cache=cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(problem, cache=cache)
    problem.step.context_lens.copy_(lengths)
    graph.replay()
    assert_solved(out, problem)


ROWS, HEADS, DIM = 3, 2, 80


def attention(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [R, H, L] and values [R, H, L, D] -> [R, H, D] and log-sum-exps [R, H]."""
    return (scores.softmax(2)[:, :, None] @ values)[:, :, 0], scores.logsumexp(2)


@pytest.mark.parametrize("lengths", [[5], [3, 9], [4, 0, 2], [1] * MAX_SPLITS])
def test_merge(lengths: list[int], dtype: torch.dtype, device: torch.device) -> None:
    scores = 20 * torch.randn(ROWS, HEADS, sum(lengths))
    values = torch.randn(ROWS, HEADS, sum(lengths), DIM)
    outputs = torch.full((len(lengths), ROWS, HEADS, DIM), torch.nan)
    sums = torch.full((len(lengths), ROWS, HEADS), -torch.inf)
    parts = zip(scores.split(lengths, dim=2), values.split(lengths, dim=2), strict=True)
    for part, (own_scores, own_values) in enumerate(parts):
        if own_scores.shape[2]:
            outputs[part], sums[part] = attention(own_scores, own_values)
    whole, _ = attention(scores, values)
    got = torch.empty(whole.shape, dtype=dtype, device=device)
    merge(outputs.to(device, dtype), sums.to(device), got)
    bound = 5e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().float(), whole, atol=bound, rtol=bound)


def test_a_row_without_tokens_in_any_split_is_not_written(device: torch.device) -> None:
    """The other row's part must still count."""
    outputs = torch.full((2, 2, 1, DIM), torch.nan, device=device)
    outputs[1, 1] = 3.0
    sums = torch.full((2, 2, 1), -torch.inf, device=device)
    sums[1, 1] = -500.0
    out = torch.full((2, 1, DIM), 7.0, device=device, dtype=torch.float16)
    merge(outputs, sums, out)
    assert out[0].eq(7).all()
    assert out[1].eq(3).all()
