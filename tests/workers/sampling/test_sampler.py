"""Sampling on the CPU: which tokens may be drawn, how often, and by which random number."""

import math

import numpy as np
import pytest
import torch

from tests.workers.sampling.sampling_rows import UNCOUNTED, chi_square, rows
from workers.sampling import sampler
from workers.sampling.sampler import log_probabilities, ranks
from workers.sampling.sampling_table import SamplingRows


def sample(logits: torch.Tensor, parameters: SamplingRows) -> torch.Tensor:
    """One token for each row that has neither penalties nor a mask."""
    return sampler.sample(logits, parameters, UNCOUNTED)


def test_greedy_takes_the_best_and_among_equals_the_lowest_id() -> None:
    logits = torch.full((3, 1000), -5.0)
    logits[0, 999] = 1.0
    logits[1, [17, 400, 900]] = 2.0
    logits[2, :] = 0.0
    assert sample(logits, rows(3, temperature=0.0)).tolist() == [999, 17, 0]


@pytest.mark.parametrize(
    ("given", "kept", "most"),
    [({"temperature": 0.7}, 6, 20.5), ({"top_k": 3}, 3, 13.9)],  # chi-square of p = 0.001
)
def test_draws_follow_the_softmax_of_what_is_kept(
    given: dict[str, float], kept: int, most: float
) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    draws = 20_000
    tokens = sample(logits.expand(draws, -1), rows(draws, index=np.arange(draws), **given))
    counts = np.bincount(tokens.numpy(), minlength=6)
    assert not counts[kept:].any()
    scaled = logits[:kept] / given.get("temperature", 1)
    assert chi_square(counts[:kept], scaled.softmax(0).numpy() * draws) < most


UNEQUAL, EQUAL = [0.125, 0.5, 0.0625, 0.25, 0.0625], [0.125] * 8


@pytest.mark.parametrize(
    ("probabilities", "given", "kept"),
    [
        (UNEQUAL, {}, [0, 1, 2, 3, 4]),
        (UNEQUAL, {"top_k": 1}, [1]),
        (UNEQUAL, {"top_k": 2}, [1, 3]),
        (UNEQUAL, {"top_k": 99}, [0, 1, 2, 3, 4]),
        (UNEQUAL, {"top_p": 0.49}, [1]),
        (UNEQUAL, {"top_p": 0.51}, [1, 3]),
        (UNEQUAL, {"top_p": 0.74}, [1, 3]),
        (UNEQUAL, {"top_p": 0.76}, [0, 1, 3]),
        (UNEQUAL, {"top_p": 1e-6}, [1]),
        (UNEQUAL, {"top_k": 2, "top_p": 0.66}, [1]),  # of the two best, 1 holds two thirds
        (UNEQUAL, {"top_k": 2, "top_p": 0.67}, [1, 3]),
        (UNEQUAL, {"top_k": 99, "top_p": 0.51}, [1, 3]),
        (UNEQUAL, {"min_p": 0.3}, [1, 3]),
        (UNEQUAL, {"min_p": 0.2}, [0, 1, 3]),
        (UNEQUAL, {"min_p": 1.0}, [1]),
        (UNEQUAL, {"min_p": 0.2, "top_k": 2}, [1, 3]),
        (UNEQUAL, {"min_p": 0.2, "top_p": 0.6}, [1, 3]),
        (UNEQUAL, {"min_p": 0.3, "top_p": 0.99}, [1, 3]),
        (UNEQUAL, {"min_p": 0.3, "temperature": 0.5}, [1]),  # a quarter of the best, once squared
        (EQUAL, {"top_k": 3}, [0, 1, 2]),  # the lowest ids among equals
        (EQUAL, {"top_p": 0.5}, [0, 1, 2, 3]),
        (EQUAL, {"top_k": 4, "top_p": 0.5}, [0, 1]),
        ([0.1, 0.3, 0.2, 0.2, 0.2], {"top_k": 2}, [1, 2]),
        # A share of 0.6 takes two tokens; after min_p, which leaves two, it would take one.
        ([0.4, 0.3, 0.1, 0.1, 0.1], {"top_p": 0.6, "min_p": 0.5}, [0, 1]),
    ],
)
def test_filters_keep_exactly(
    probabilities: list[float], given: dict[str, float], kept: list[int]
) -> None:
    """Those that are drawn in 500 attempts."""
    logits = torch.tensor(probabilities).log().expand(500, -1)
    tokens = sample(logits, rows(500, index=np.arange(500), **given))
    assert sorted(set(tokens.tolist())) == kept


@pytest.mark.parametrize("top_k", [0, 1, 50, 64, 65, 900, 1025, 2999])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 0.95])
def test_draws_equal_those_from_sorted_rows(top_k: int, top_p: float) -> None:
    count, vocabulary = 200, 3000
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(count, vocabulary, generator=generator)
    logits[: count // 2] = (logits[: count // 2] * 4).round() / 4  # many equals
    parameters = rows(count, top_k=top_k, top_p=top_p, index=np.arange(count))
    tokens = sample(logits, parameters)
    ordered, ids = logits.double().sort(descending=True, stable=True)
    reached = ordered.softmax(-1).cumsum(-1)
    mass = reached[:, [(top_k or vocabulary) - 1]]
    kept = (reached < top_p * mass).sum(-1).clamp(max=(top_k or vocabulary) - 1)
    uniform = torch.from_numpy(parameters.uniforms()).double()[:, None]
    if top_k or top_p < 1:
        point = uniform * reached.gather(1, kept[:, None])
        expected = ids.gather(1, (reached <= point).sum(-1, keepdim=True))[:, 0]
    else:
        expected = (logits.double().softmax(-1).cumsum(-1) <= uniform).sum(-1)
    # Sums in float32 may put a number on the other side of an edge.
    assert (tokens == expected).float().mean() > 0.99


def test_a_token_depends_only_on_its_own_seed_index_and_logits() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(32, 3001, generator=generator) * 3
    parameters = rows(
        32,
        temperature=np.resize([0.0, 0.7, 1.0, 1.3], 32),
        top_k=np.resize([0, 5, 400], 32),
        top_p=np.resize([1.0, 0.9, 0.5, 0.99, 1.0], 32),
        seed=np.arange(32) * 7919 % 11,
        index=np.arange(32),
    )
    together = sample(logits, parameters)
    for order in (np.arange(32)[::-1].copy(), np.array([5]), np.array([31, 3, 8, 8])):
        assert torch.equal(sample(logits[order], parameters.subset(order)), together[order])


def test_equal_seeds_and_indices_draw_equally_and_others_do_not() -> None:
    flat = torch.zeros(64, 5000)
    same = sample(flat, rows(64, seed=9, index=4))
    assert len(set(same.tolist())) == 1
    assert len(set(sample(flat, rows(64, seed=9, index=np.arange(64))).tolist())) > 60
    assert len(set(sample(flat, rows(64, seed=np.arange(64), index=4)).tolist())) > 60


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_fail_alone(temperature: float, poison: float) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    parameters = rows(4, temperature=temperature, top_k=[0, 7, 0, 0], top_p=[1, 1, 0.9, 1])
    clean = sample(logits.clone(), parameters).tolist()
    logits[1, 200] = poison
    logits[2, :] = -torch.inf
    assert sample(logits, parameters).tolist() == [clean[0], -1, -1, clean[3]]


def test_minus_infinity_is_never_drawn() -> None:
    logits = torch.zeros(500, 40)
    logits[:, 1:39] = -torch.inf
    for parameters in (rows(500, index=np.arange(500)), rows(500, index=np.arange(500), top_k=20)):
        assert set(sample(logits, parameters).tolist()) == {0, 39}


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-4])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[-1e30, 3.0, 2.9, 1e-3]])
    assert sample(logits, rows(1, temperature=temperature)).tolist() == [1]


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4)) * 2
    tokens = torch.tensor([4, 0, 49])
    chosen, top_ids, top = log_probabilities(logits, tokens, 3)
    expected = logits.double().log_softmax(-1)
    np.testing.assert_allclose(chosen, expected.gather(1, tokens[:, None])[:, 0], atol=1e-5)
    best = expected.sort(descending=True)
    np.testing.assert_array_equal(top_ids, best.indices[:, :3])
    np.testing.assert_allclose(top, best.values[:, :3], atol=1e-5)


def test_log_probabilities_without_alternatives_and_of_failed_rows() -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    chosen, top_ids, _ = log_probabilities(logits, torch.tensor([2, -1]), 0)
    assert chosen[0] == pytest.approx(-np.log(8), abs=1e-6)
    assert math.isnan(chosen[1])
    assert top_ids.shape == (2, 0)


def test_a_rank_counts_the_more_probable_tokens() -> None:
    logits = torch.tensor([[0.5, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, -torch.inf], [1.0, 2.0, 3.0, 4.0]])
    for tokens, expected in (
        ([1, 0, 0], [1, 1, 4]),
        ([2, 3, 3], [2, 4, 1]),
        ([3, 2, -1], [2, 1, 4]),
    ):
        found = ranks(logits, torch.tensor(tokens))
        assert (found.dtype, found.tolist()) == (torch.int32, expected)
