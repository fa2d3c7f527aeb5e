"""Rows of a table, as they are."""

import pytest
import torch

from workers.kernels.linear.rowwise import embedding


@pytest.mark.parametrize(("count", "size"), [(1, 64), (5, 80), (40, 1000)])
def test_rows_of_a_table(count: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    weight = torch.randn(30, size).to(device, dtype)
    ids = torch.randint(0, 30, (count + 1,), device=device)[1:]
    assert torch.equal(embedding(ids, weight), weight[ids])


def test_scaled_rows(dtype: torch.dtype, device: torch.device) -> None:
    weight = torch.randn(30, 80).to(device, dtype)
    ids = torch.randint(0, 30, (7,), device=device)
    torch.testing.assert_close(embedding(ids, weight, 50.5), weight[ids] * 50.5)


def test_no_rows(device: torch.device) -> None:
    weight = torch.randn(30, 64, device=device)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    assert embedding(nothing, weight).shape == (0, 64)
