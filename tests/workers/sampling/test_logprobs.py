"""Log-probabilities and ranks of chosen tokens."""

import math

import numpy as np
import pytest
import torch

from workers.sampling.sampler import log_probabilities, ranks


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
