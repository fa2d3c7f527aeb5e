"""The drawing kernels against the CPU's sampler, which has tests of its own."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.sampling.logits import logits_of
from tests.workers.sampling.sampling_rows import UNCOUNTED, rows
from workers.kernels.sampling import draw_tokens
from workers.kernels.sampling.logit_rows import TILE
from workers.sampling import cuda
from workers.sampling.sampler import draw
from workers.sampling.sampling_table import SamplingRows


def long(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def drawn_alike(logits: torch.Tensor, parameters: SamplingRows) -> list[int]:
    """What both the kernels and the CPU draw."""
    drawn = cuda.sample(logits, parameters, None, UNCOUNTED, None).tolist()
    assert drawn == draw(logits.float().cpu(), parameters).tolist()
    return drawn


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.3},
        *long({"top_k": 1}, {"top_k": 7}),
        {"top_k": 2099},
        {"top_k": 2100},
        {"top_k": 2**31 - 1},
        *long({"top_p": 1e-6}, {"top_p": 0.99, "temperature": 2.0}),
        {"top_p": 0.5},
        {"min_p": 0.1},
        *long({"min_p": 1.0}, {"top_p": 0.9, "min_p": 0.2, "temperature": 1.5}),
        {"top_k": 40, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1e-30},
        *long({"temperature": 1e-45, "top_p": 0.5}),
    ],
    ids=str,
)
def test_draws_equal_those_of_the_cpu(given: dict[str, Any], device: torch.device) -> None:
    count = 2
    logits = logits_of(count, seed=1, device=device, dtype=torch.float32)
    drawn_alike(logits, rows(count, index=np.arange(count), **given))


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        (torch.bfloat16, 5),
        *(
            pytest.param(dtype, 10, marks=pytest.mark.long)
            for dtype in (torch.float32, torch.float16)
        ),
    ],
)
def test_kinds_of_rows_mix_in_every_dtype(
    device: torch.device, dtype: torch.dtype, count: int
) -> None:
    parameters = rows(
        count,
        temperature=np.resize([0.0, 0.7, 1.0, 1.3, 1.3], count),
        top_k=np.resize([0, 5, 64, 400], count),
        top_p=np.resize([1.0, 0.9, 0.5], count),
        min_p=np.resize([0.0, 0.0, 0.0, 0.0, 0.0, 0.02, 0.3], count),
        index=np.arange(count),
    )
    drawn_alike(logits_of(count, seed=2, device=device, dtype=dtype), parameters)


@pytest.mark.parametrize("top_p", [*long(1.0), 0.7])
def test_equals_at_the_edge_are_kept_by_id(top_p: float, device: torch.device) -> None:
    count = 6
    logits = torch.full((count, 300), -1.0)
    logits[:, 7::40] = 1.0
    logits[:, 200] = 2.0
    drawn = drawn_alike(logits.to(device), rows(count, top_k=5, top_p=top_p, seed=range(count)))
    kept = {200, 7, 47, 87, 127} if top_p == 1 else {200, 7, 47}
    assert set(drawn) <= kept
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    "given",
    [{"temperature": 0}, {}, *long({"top_k": 9}), {"top_p": 0.9}],
    ids=str,
)
def test_rows_that_are_not_finite_fail_alone(given: dict[str, Any], device: torch.device) -> None:
    logits = logits_of(7, seed=4, device=device, dtype=torch.float16)
    parameters = rows(7, index=np.arange(7), **given)
    clean = draw(logits.float().cpu(), parameters).tolist()
    logits[1, 200], logits[2, 0], logits[3, 2099] = torch.nan, torch.inf, -torch.nan
    logits[4] = -torch.inf
    logits[5, ::2] = -torch.inf
    tokens = drawn_alike(logits, parameters)
    assert tokens[1:5] == [-1] * 4
    assert [tokens[0], tokens[6]] == [clean[0], clean[6]]
    assert tokens[5] % 2 == 1


@pytest.mark.parametrize(
    "given", [{}, *long({"top_k": 3}, {"min_p": 1e-9}), {"top_p": 0.999}], ids=str
)
def test_minus_infinity_is_never_drawn(given: dict[str, Any], device: torch.device) -> None:
    logits = torch.full((5, 300), -torch.inf)
    logits[:, [3, 140, 299]] = torch.tensor([0.5, 0.0, 0.2])
    drawn = drawn_alike(logits.to(device), rows(5, index=np.arange(5), **given))
    assert set(drawn) == {3, 140, 299}


def test_a_top_p_that_is_met_but_for_the_last_bit(device: torch.device) -> None:
    """Threads that do not agree on such a bit leave a search apart, and then some wait for others
    for good: in one of these rows among a few."""
    count = 4096 if device.type == "cuda" else 1
    logits = 3 * torch.randn(count, 4096, device=device)
    shares = logits.double().softmax(-1).sort(descending=True).values.cumsum(-1)
    before = (shares < 0.95).sum(-1, keepdim=True)
    met = shares.gather(1, before)[:, 0].cpu().numpy()
    parameters = rows(count, top_p=met, index=np.arange(count))
    drawn = cuda.sample(logits, parameters, None, UNCOUNTED, None)
    assert int(drawn.min()) >= 0
    better = logits > logits.gather(1, drawn.long()[:, None])
    assert (better.sum(-1) <= before[:, 0] + 1).all()


@pytest.mark.parametrize("given", [{"top_k": 50}, *long({"top_p": 0.9}, {"min_p": 0.01})], ids=str)
def test_too_many_candidates_make_no_difference(
    given: dict[str, Any], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_tokens, "CAPACITY", 4)
    logits = logits_of(3, seed=3, device=device, dtype=torch.bfloat16)
    drawn_alike(logits, rows(3, index=np.arange(3), **given))


def test_the_best_is_the_first_among_equals(device: torch.device, dtype: torch.dtype) -> None:
    logits = torch.full((5, 2 * TILE + 9), -5.0)
    logits[0, -1] = 1.0
    logits[1, [17, 400, TILE + 3]] = 2.0
    logits[2] = 0.0
    logits[3, [TILE - 1, TILE]] = -0.5
    logits[4] = -torch.inf
    logits[4, [TILE + 1, 2 * TILE]] = torch.tensor([-0.0, 0.0])
    tokens = cuda.sample(logits.to(device, dtype), rows(5, temperature=0), None, UNCOUNTED, None)
    assert tokens.tolist() == [2 * TILE + 8, 17, 0, TILE - 1, TILE + 1]
