"""Backends over packages that are not here: each called as documented, by stand-ins that attend by
definition from nothing but the arguments."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.workers.attention.reference import assert_solved, dense_attention
from tests.workers.attention_problems import PackedProblem, Problem, attention_needs
from workers.attention.backends import flash_attn
from workers.attention.backends.flash_attn import (
    FlashAttention2Backend,
    FlashAttention3Backend,
    FlashAttention4Backend,
)
from workers.attention.backends.flashinfer import FlashInferBackend
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import AttentionBackend
from workers.contract.model_config import AttentionKind
from workers.kernels.attention import paged_decode

STEPS = {
    "decode": [(6, 1), (8, 1), (0, 1)],
    "prompts": [(0, 9), (0, 4)],
    "decodes_then_chunks": [(7, 1), (20, 1), (0, 5), (3, 6), (4, 4)],
    "decodes_among_chunks": [(0, 5), (7, 1), (3, 6), (0, 1)],
}


def kind_of(
    scale: float, softcap: float | None, reach: tuple[int | None, int | None], *, causal: bool
) -> AttentionKind:
    """`reach`: how many tokens a query sees before and behind it; None or -1 for all."""
    before, behind = (None if side == -1 else side for side in reach)
    assert causal or before == behind
    window = None if before is None else before + 1
    return AttentionKind(causal=causal, scale=scale, softcap=softcap or None, window=window)


def rows(starts: torch.Tensor) -> Iterator[slice]:
    assert starts.dtype == torch.int32
    for start, stop in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        yield slice(start, stop)


# Parameters of stand-ins are called as the libraries document them.


def ragged(q, k, v, starts: torch.Tensor, kind: AttentionKind) -> torch.Tensor:
    assert not kind.causal
    assert starts[0] == 0
    assert starts[-1] == len(q) == len(k)
    parts = [dense_attention(q[row], k[row], v[row], kind) for row in rows(starts)]
    return torch.cat(parts).to(q.dtype)


def paged(
    q, keys, values, starts: torch.Tensor, lengths, table, kind: AttentionKind
) -> torch.Tensor:
    """Causal over pages, as every generation of FlashAttention has it: NaN before the first row."""
    assert kind.causal
    assert table.dtype == lengths.dtype == torch.int32
    assert len(table) == len(lengths) == len(starts) - 1
    assert starts[-1] == len(q)
    parts = [torch.full_like(q[: int(starts[0])], torch.nan)]
    for row, length, pages in zip(rows(starts), lengths.tolist(), table, strict=True):
        own = pages[: -(-length // keys.shape[1])]
        context = [cached[own].flatten(0, 1)[:length] for cached in (keys, values)]
        parts.append(dense_attention(q[row], context[0], context[1], kind))
    return torch.cat(parts).to(q.dtype)


def flash_attn_fwd(
    q, k, v, *, cu_seqlens_q, cu_seqlens_k=None, seqused_k=None, page_table=None, softmax_scale,
    causal=False, softcap, window_size_left, window_size_right=None, out,
) -> None:  # fmt: skip
    reach = (window_size_left, window_size_right)
    kind = kind_of(softmax_scale, softcap, reach, causal=causal)
    if page_table is None:
        assert cu_seqlens_q.equal(cu_seqlens_k)
        out.copy_(ragged(q, k, v, cu_seqlens_q, kind))
    else:
        attended = paged(q, k, v, cu_seqlens_q, seqused_k, page_table, kind)
        out[cu_seqlens_q[0] :] = attended[cu_seqlens_q[0] :]


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, softmax_scale,
    causal, window_size, softcap,
) -> torch.Tensor:  # fmt: skip
    kind = kind_of(softmax_scale, softcap, window_size, causal=causal)
    assert max_seqlen_q == cu_seqlens_q.diff().max()
    return paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, kind)


def flash_attn_varlen_func(
    q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale,
    causal=False, window_size, softcap, block_table=None,
) -> torch.Tensor:  # fmt: skip
    kind = kind_of(softmax_scale, softcap, window_size, causal=causal)
    assert max_seqlen_q == cu_seqlens_q.diff().max()
    assert max_seqlen_k == cu_seqlens_k.diff().max()
    if block_table is None:
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        return ragged(q, k, v, cu_seqlens_q, kind)
    return paged(q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table, kind)


class PagedWrapper:
    """FlashInfer's batch prefill over pages."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "NHD"

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, *, causal, sm_scale, window_left, logits_soft_cap,
        q_data_type, kv_data_type,
    ) -> None:  # fmt: skip
        reach = (window_left, None)
        self._kind = kind_of(sm_scale, logits_soft_cap, reach, causal=causal)
        assert paged_kv_indices.dtype == paged_kv_last_page_len.dtype == torch.int32
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        self._heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        self._page_size, self._starts = page_size, qo_indptr
        self._pages = [paged_kv_indices[row] for row in rows(paged_kv_indptr)]
        counts = paged_kv_indptr.diff()
        self._lengths = (counts - 1) * page_size + paged_kv_last_page_len

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, values = cache
        assert (q.shape[1], *keys.shape[2:]) == self._heads
        assert keys.shape[1] == self._page_size
        table = torch.nn.utils.rnn.pad_sequence(self._pages, batch_first=True)
        return paged(q, keys, values, self._starts, self._lengths, table, self._kind)


class RaggedWrapper(PagedWrapper):
    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, causal, sm_scale,
        window_left, logits_soft_cap, q_data_type, kv_data_type,
    ) -> None:  # fmt: skip
        assert torch.equal(qo_indptr, kv_indptr)
        self._starts = qo_indptr
        self._kind = kind_of(sm_scale, logits_soft_cap, (window_left, None), causal=causal)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ragged(q, k, v, self._starts, self._kind)


def decode(
    queries,
    keys,
    values,
    block_tables,
    slots,
    context_lens,
    kind,
    out,
    *,
    scales,
    sinks,
    min_splits,
    prefix,
) -> None:
    assert scales is None, "no FP8"
    assert sinks is None, "not of this backend"
    assert min_splits == 1, "contexts are short"
    assert prefix is None, "no rows share one"
    starts = torch.arange(len(queries) + 1, dtype=torch.int32)
    out.copy_(paged(queries, keys, values, starts, context_lens, block_tables[slots], kind))


STAND_INS: dict[str, dict[str, Any]] = {
    "flash_attn.cute.interface": {"_flash_attn_fwd": flash_attn_fwd},
    "flash_attn_interface": {
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
        "flash_attn_varlen_func": flash_attn_varlen_func,
    },
    "flash_attn": {"flash_attn_varlen_func": flash_attn_varlen_func},
    "flashinfer": {
        "BatchPrefillWithPagedKVCacheWrapper": PagedWrapper,
        "BatchPrefillWithRaggedKVCacheWrapper": RaggedWrapper,
    },
}

BACKENDS = [
    FlashAttention4Backend,
    FlashAttention3Backend,
    FlashAttention2Backend,
    FlashInferBackend,
]


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, attributes in STAND_INS.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(paged_decode, "attend", decode)
    monkeypatch.setattr(TritonBackend, "write_kv", AttentionBackend.write_kv)
    monkeypatch.setattr(torch.cuda, "Event", MagicMock)


@pytest.mark.parametrize("kind", [{}, {"window": 5, "softcap": 2.0, "scale": 0.4}], ids=str)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_paged_causal(
    backend: type[AttentionBackend], step: list[tuple[int, int]], kind: dict[str, Any]
) -> None:
    problem = Problem(step, attention_needs((4, 2, 32), **kind))
    assert_solved(problem.solve(backend(problem.want)), problem)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("kind", [{}, {"window": 5}, {"softcap": 2.0, "scale": 0.4}], ids=str)
def test_bidirectional(
    backend: type[AttentionBackend],
    kv_heads: int,
    kind: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts long enough for the library."""
    monkeypatch.setattr(flash_attn, "LONG_TEXTS", 0)
    want = attention_needs((4, kv_heads, 32), paged=False, **kind)
    if want.kind.window and not backend.capabilities.bidirectional_windows:
        pytest.skip("no windows")
    problem = PackedProblem([3, 30, 1, 8], want)
    assert_solved(problem.solve(backend(want)), problem)


def test_steps_of_decoding_look_at_no_length_on_the_host() -> None:
    """What a CUDA graph of one would have to hold is the same for all."""
    want = attention_needs()
    backend = FlashAttention4Backend(want)
    short, long = (Problem([(cached, 1)] * 3, want) for cached in (1, 40))
    for problem in (short, long):
        plan = backend.plan_paged(problem.step)
        assert plan.others is None
        assert plan.step.block_tables is problem.step.block_tables
        assert plan.decode_rows == 3
