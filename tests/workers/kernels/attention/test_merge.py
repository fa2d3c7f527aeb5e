"""Parts of an attention, merged, against the whole."""

import pytest
import torch

from workers.kernels.attention.paged_decode import MAX_SPLITS, merge

ROWS, HEADS, DIM = 3, 2, 80


def attention(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [R, H, L] and values [R, H, L, D] -> [R, H, D] and log-sum-exps [R, H]."""
    return (scores.softmax(2)[:, :, None] @ values)[:, :, 0], scores.logsumexp(2)


@pytest.mark.parametrize("lengths", [[5], [3, 9], [4, 0, 2], [1] * MAX_SPLITS])
def test_merge(lengths: list[int], dtype: torch.dtype, device: torch.device) -> None:
    numbers = torch.Generator().manual_seed(len(lengths))
    scores = 20 * torch.randn(ROWS, HEADS, sum(lengths), generator=numbers)
    values = torch.randn(ROWS, HEADS, sum(lengths), DIM, generator=numbers)
    outputs = torch.full((len(lengths), ROWS, HEADS, DIM), torch.nan)
    sums = torch.full((len(lengths), ROWS, HEADS), -torch.inf)
    start = 0
    for part, length in enumerate(lengths):
        stop = start + length
        if length:
            outputs[part], sums[part] = attention(
                scores[:, :, start:stop], values[:, :, start:stop]
            )
        start = stop
    whole, _ = attention(scores, values)
    got = torch.empty(whole.shape, dtype=dtype, device=device)
    merge(outputs.to(device, dtype), sums.to(device), got)
    bound = 5e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().float(), whole, atol=bound, rtol=bound)


def test_nothing_is_written_where_there_are_no_tokens_at_all(device: torch.device) -> None:
    """In one row; the other's part must still count."""
    outputs = torch.full((2, 2, 1, DIM), torch.nan, device=device)
    outputs[1, 1] = 3.0
    sums = torch.full((2, 2, 1), -torch.inf, device=device)
    sums[1, 1] = -500.0
    out = torch.full((2, 1, DIM), 7.0, device=device, dtype=torch.float16)
    merge(outputs, sums, out)
    assert out[0].eq(7).all()
    assert out[1].eq(3).all()
