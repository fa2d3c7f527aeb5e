"""Statistics of groups of logits, and the log-probabilities that follow from them."""

import torch

from tests.workers.kernels.sampling.logits import logits_of
from workers.kernels.sampling import logit_rows as group_statistics
from workers.kernels.sampling.logit_rows import LogitRows
from workers.sampling import cuda
from workers.sampling.reading import ReadTokens, read_logits
from workers.sampling.sampler import log_probabilities


def test_groups_cover_the_vocabulary(device: torch.device, dtype: torch.dtype) -> None:
    logits = logits_of(2, seed=6, device=device, dtype=dtype)
    peaks, sums = group_statistics.group_statistics(LogitRows(logits))
    pieces = logits.float().split(group_statistics.GROUP, dim=1)
    torch.testing.assert_close(peaks, torch.stack([piece.amax(1) for piece in pieces], 1))
    expected = torch.stack([(piece - piece.amax(1)[:, None]).exp().sum(1) for piece in pieces], 1)
    torch.testing.assert_close(sums, expected)


def test_log_probabilities_equal_those_of_the_cpu(device: torch.device, dtype: torch.dtype) -> None:
    logits = logits_of(5, seed=5, device=device, dtype=dtype)
    logits[3] = -torch.inf
    logits[3, 9] = 1.0
    logits[4, 2] = torch.nan
    tokens = torch.tensor([0, 699, 31, 9, -1], dtype=torch.int32)
    reported = cuda.log_probabilities(logits, tokens.to(device), 4)
    expected = log_probabilities(logits.float().cpu(), tokens, 4)
    torch.testing.assert_close(reported.chosen.cpu(), expected.chosen, equal_nan=True)
    torch.testing.assert_close(reported.top.cpu(), expected.top, equal_nan=True)
    # Which of several equals is among the best is left open.
    chosen = logits.float().log_softmax(-1).gather(1, reported.top_ids.long())
    torch.testing.assert_close(reported.top[:4].cpu(), chosen[:4].cpu())


def test_what_is_read_equals_what_the_cpu_reads(device: torch.device, dtype: torch.dtype) -> None:
    logits = logits_of(4, seed=7, device=device, dtype=dtype)
    logits[1] = -torch.inf
    logits[1, 9] = 1.0
    logits[3, 2] = torch.nan
    sums = cuda.log_sum_exps(logits).cpu()
    torch.testing.assert_close(sums, logits.float().cpu().logsumexp(-1), equal_nan=True)
    given = ReadTokens(*map(torch.tensor, ([0, 1, 3], [0, 0, 1, 2], [5, 5, 9, 8])))
    read = read_logits(logits, ReadTokens(*(each.to(device) for each in given)))
    expected = logits.float().cpu().log_softmax(-1)[[0, 0, 1, 3], [5, 5, 9, 8]]
    torch.testing.assert_close(read.float().cpu(), expected, equal_nan=True)
