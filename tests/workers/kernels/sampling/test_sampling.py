"""The sampling kernels against the CPU's sampler, which has tests of its own."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.sampling.sampling_rows import UNCOUNTED, allowing, filled_table, init, rows
from workers.device.transfer import to_device
from workers.kernels.sampling import group_statistics
from workers.kernels.sampling.best_tokens import TILE
from workers.kernels.sampling.candidates import DrawParameters
from workers.kernels.sampling.draw_tokens import draw_tokens
from workers.kernels.sampling.logit_rows import LogitRows
from workers.sampling import cpu, cuda, logprobs, sampler
from workers.sampling.adjustments import TokenMask, with_mask
from workers.sampling.sampling_table import SamplingRows, SamplingTable
from workers.sampling.sampling_warm_up import warm_up_sampling

VOCABULARY = 2100
"""Two tiles, of 16 groups of 128 and of a rest."""


def logits_of(count: int, seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Every other row full of equals."""
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    logits[::2] = logits[::2].round()
    return logits.to(device, dtype)


def both(logits: torch.Tensor, parameters: SamplingRows) -> tuple[list[int], list[int]]:
    """What the kernels draw, and what the CPU does."""
    drawn = cuda.sample(logits, parameters, None, UNCOUNTED, None)
    return drawn.tolist(), cpu.draw(logits.float().cpu(), parameters).tolist()


def draw(logits: torch.Tensor, parameters: SamplingRows, capacity: int) -> list[int]:
    """What the kernels draw where only `capacity` candidates fit."""
    own = parameters.parameters
    columns = [1 / own["temperature"], parameters.uniforms(), own["top_p"], own["min_p"]]
    columns.append(own["top_k"])
    given = DrawParameters(*to_device(columns, logits.device))
    return draw_tokens(LogitRows(logits), given, truncated=True, capacity=capacity).tolist()


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


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 2099},
        {"top_k": 2100},
        {"top_k": 2**31 - 1},
        {"top_p": 1e-6},
        {"top_p": 0.5},
        {"top_p": 0.99, "temperature": 2.0},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.05},
        {"top_p": 0.9, "min_p": 0.2, "temperature": 1.5},
        {"temperature": 1e-30},
        {"temperature": 1e-45, "top_p": 0.5},
    ],
    ids=str,
)
def test_draws_are_those_of_the_cpu(given: dict[str, Any], device: torch.device) -> None:
    count = 6
    logits = logits_of(count, seed=1, device=device, dtype=torch.float32)
    drawn, expected = both(logits, rows(count, index=np.arange(count), **given))
    assert drawn == expected


def test_kinds_of_rows_mix_in_every_dtype(device: torch.device, dtype: torch.dtype) -> None:
    count = 10
    parameters = rows(
        count,
        temperature=np.resize([0.0, 0.7, 1.0, 1.3, 1.3], count),
        top_k=np.resize([0, 5, 64, 400], count),
        top_p=np.resize([1.0, 0.9, 0.5], count),
        min_p=np.resize([0.0, 0.0, 0.0, 0.0, 0.0, 0.02, 0.3], count),
        index=np.arange(count),
    )
    drawn, expected = both(logits_of(count, seed=2, device=device, dtype=dtype), parameters)
    assert drawn == expected


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_equals_at_the_edge_are_kept_by_id(top_p: float, device: torch.device) -> None:
    count = 6
    logits = torch.full((count, 300), -1.0)
    logits[:, 7::40] = 1.0
    logits[:, 200] = 2.0
    drawn, expected = both(logits.to(device), rows(count, top_k=5, top_p=top_p, seed=range(count)))
    assert drawn == expected
    kept = {200, 7, 47, 87, 127} if top_p == 1 else {200, 7, 47}
    assert set(drawn) <= kept
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("given", [{"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}], ids=str)
def test_too_many_candidates_make_no_difference(
    given: dict[str, Any], device: torch.device
) -> None:
    logits = logits_of(3, seed=3, device=device, dtype=torch.bfloat16)
    parameters = rows(3, index=np.arange(3), **given)
    few, enough = (draw(logits, parameters, capacity) for capacity in (4, 1024))
    assert few == enough == cpu.draw(logits.float().cpu(), parameters).tolist()


@pytest.mark.parametrize("given", [{"temperature": 0}, {}, {"top_k": 9}, {"top_p": 0.9}], ids=str)
def test_rows_that_are_not_finite_fail_alone(given: dict[str, Any], device: torch.device) -> None:
    logits = logits_of(7, seed=4, device=device, dtype=torch.float16)
    parameters = rows(7, index=np.arange(7), **given)
    clean, _ = both(logits, parameters)
    logits[1, 200], logits[2, 0], logits[3, 2099] = torch.nan, torch.inf, -torch.nan
    logits[4] = -torch.inf
    logits[5, ::2] = -torch.inf
    tokens, expected = both(logits, parameters)
    assert tokens == expected
    assert tokens[1:5] == [-1] * 4
    assert [tokens[0], tokens[6]] == [clean[0], clean[6]]
    assert tokens[5] % 2 == 1


@pytest.mark.parametrize("given", [{}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 1e-9}], ids=str)
def test_minus_infinity_is_never_drawn(given: dict[str, Any], device: torch.device) -> None:
    logits = torch.full((10, 300), -torch.inf)
    logits[:, [3, 140, 299]] = torch.tensor([0.5, 0.0, 0.2])
    drawn, expected = both(logits.to(device), rows(10, index=np.arange(10), **given))
    assert drawn == expected
    assert set(drawn) == {3, 140, 299}


def test_a_top_p_that_is_met_but_for_the_last_bit(device: torch.device) -> None:
    """Threads that do not agree on such a bit leave a search apart, and then some wait for others
    for good: in one of these rows among a few."""
    count = 4096 if device.type == "cuda" else 2
    logits = 3 * torch.randn(count, 4096, device=device)
    shares = logits.double().softmax(-1).sort(descending=True).values.cumsum(-1)
    before = (shares < 0.95).sum(-1, keepdim=True)
    met = shares.gather(1, before)[:, 0].cpu().numpy()
    parameters = rows(count, top_p=met, index=np.arange(count))
    drawn = cuda.sample(logits, parameters, None, UNCOUNTED, None)
    assert int(drawn.min()) >= 0
    better = logits > logits.gather(1, drawn.long()[:, None])
    assert (better.sum(-1) <= before[:, 0] + 1).all()


def test_draws_follow_the_softmax(device: torch.device) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    draws = 300
    parameters = rows(draws, temperature=0.7, index=np.arange(draws))
    tokens = cuda.sample(
        logits.expand(draws, -1).contiguous().to(device), parameters, None, UNCOUNTED, None
    )
    counts = np.bincount(tokens.cpu().numpy(), minlength=6)
    expected = (logits / 0.7).softmax(0).numpy() * draws
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_adjustments_are_those_of_the_cpu(
    temperature: float, device: torch.device, dtype: torch.dtype
) -> None:
    """Bias, penalties and masks, on some rows of a step, over steps that count their tokens."""
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.4}
    common: dict[str, Any] = {"temperature": temperature, "top_k": 20 if temperature else 0}
    inits = [
        init(0, [1, 2], **common),
        init(1, [1, 2, 2099, 5], [9, 9, 300], **penalties, **common),
        init(2, [3], bias={5: 9.0, 2099: 10.0, 0: -3.0}, **common),
        init(3, [4], bias={8: 12.5}, frequency_penalty=1.1, **common),
        init(4, [4], **common),
        init(5, [6, 7], [1], presence_penalty=-0.5, **common),
        init(6, [6], bias={9: 5.0}, barred=[*range(4, 2000)], min_tokens=3, **common),
    ]
    allowed = [list(range(0, 2100, 3)), [31, 32, 64, 2099]]
    on_cpu, parameters = filled_table(VOCABULARY, inits)
    on_device, _ = filled_table(VOCABULARY, inits, device)
    words = allowing(VOCABULARY, allowed)
    for step in range(2):
        logits = logits_of(7, seed=step, device=device, dtype=dtype)
        mask = TokenMask(np.array([1, 4], np.int32), words) if step % 2 else None
        expected = sampler.sample(logits.float().cpu(), parameters, on_cpu.counts, mask)
        adjustments = parameters.adjustments
        if mask is not None:
            mask = mask._replace(words=words.to(device))
            adjustments = with_mask(adjustments, mask)
        tokens = cuda.sample(logits, parameters, adjustments, on_device.counts, mask)
        assert tokens.tolist() == expected.tolist()
        assert not 4 <= tokens[6] < 2000
        # As `sampler.sample` does, by the device's own tokens.
        counted = torch.tensor([1, 3, 5], device=device)
        on_device.counts.add(counted, tokens[counted].long())
    assert torch.equal(on_device.counts.table.cpu(), on_cpu.counts.table)


@pytest.mark.gpu
def test_nothing_is_compiled_after_warm_up(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step's parameters begin in memory depends on the number of its rows."""
    if device.type != "cuda":
        pytest.skip("the interpreter compiles nothing")
    warm_up_sampling(logits_of(1, 0, device, torch.bfloat16), SamplingTable(1, VOCABULARY, device))
    compiled: list[str] = []
    hook = "triton.knobs.runtime.jit_cache_hook"
    monkeypatch.setattr(hook, lambda **given: compiled.append(given["repr"]))
    words = allowing(VOCABULARY, [[5, 9]]).to(device)
    drawn = [{}, {"temperature": 1.0}, {"top_p": 0.9, "temperature": 0.7}]
    penalised = [{}, {"presence_penalty": 1.0}]
    biased = [{}, {"bias": {3: 1.0}}, {"bias": {3: 1.0, 7: 2.0, 8: 1.0}}]
    masks = [None, TokenMask(np.zeros(1, np.int32), words)]
    for one, two, three, mask in product(drawn, penalised, biased, masks):
        given: dict[str, Any] = {**one, **two, **three}
        for count in range(1, 6):
            inits = [init(slot, [1], **given) for slot in range(count)]
            table, parameters = filled_table(VOCABULARY, inits, device)
            logits = logits_of(count, 0, device, torch.bfloat16)
            sampler.sample(logits, parameters, table.counts, mask)
    assert compiled == []


def test_a_small_penalty_is_not_lost_in_bfloat16(device: torch.device) -> None:
    logits = torch.full((1, 300), 20.0, dtype=torch.bfloat16, device=device)
    table, parameters = filled_table(300, [init(0, [5], presence_penalty=0.01)], device)
    for step in range(3):
        tokens = cuda.sample(logits, parameters, parameters.adjustments, table.counts, None)
        assert tokens.tolist() == [step]
        table.counts.add(torch.tensor([0], device=device), tokens.long())


def test_log_probabilities_are_those_of_the_cpu(device: torch.device, dtype: torch.dtype) -> None:
    logits = logits_of(5, seed=5, device=device, dtype=dtype)
    logits[3] = -torch.inf
    logits[3, 9] = 1.0
    logits[4, 2] = torch.nan
    tokens = torch.tensor([0, 699, 31, 9, -1], dtype=torch.int32)
    reported = cuda.log_probabilities(logits, tokens.to(device), 4)
    expected = logprobs.log_probabilities(logits.float().cpu(), tokens, 4)
    torch.testing.assert_close(reported.chosen.cpu(), expected.chosen, equal_nan=True)
    torch.testing.assert_close(reported.top.cpu(), expected.top, equal_nan=True)
    # Which of several equals is among the best is left open.
    chosen = logits.float().log_softmax(-1).gather(1, reported.top_ids.long())
    torch.testing.assert_close(reported.top[:4].cpu(), chosen[:4].cpu())


def test_groups_cover_the_vocabulary(device: torch.device, dtype: torch.dtype) -> None:
    logits = logits_of(2, seed=6, device=device, dtype=dtype)
    peaks, sums = group_statistics.group_statistics(LogitRows(logits))
    pieces = logits.float().split(group_statistics.GROUP, dim=1)
    torch.testing.assert_close(peaks, torch.stack([piece.amax(1) for piece in pieces], 1))
    expected = torch.stack([(piece - piece.amax(1)[:, None]).exp().sum(1) for piece in pieces], 1)
    torch.testing.assert_close(sums, expected)
