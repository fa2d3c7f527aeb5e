"""Averages of states by the kernel against those on a CPU, which are tested against the library."""

import msgspec
import pytest
import torch

from tests.workers.kernels.cases import drawn
from tests.workers.step_maker import encoder_step, int32
from workers.contract.model_config import PoolingConfig, PoolingMode
from workers.heads.encoder_head import pool
from workers.kernels.pooling import average
from workers.step.packed_step import PackedStep

LENS = [3, 1, 70, 2, 129]


@pytest.mark.parametrize("prompts", [None, [1, 0, 65, 0, 2]], ids=["whole", "prompts"])
@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len_tokens", "weightedmean"])
def test_averages(
    mode: PoolingMode, prompts: list[int] | None, dtype: torch.dtype, device: torch.device
) -> None:
    message = encoder_step([[1] * length for length in LENS])
    if prompts is not None:
        message = msgspec.structs.replace(message, unpooled_lens=int32(prompts))
    step = PackedStep.of(message, torch.device("cpu"), (mode,))
    states = drawn(sum(LENS) + 7, 200, dtype=dtype, device=device)
    states[sum(LENS) :] = torch.nan  # padding
    unpooled = None if step.unpooled_lens is None else step.unpooled_lens.to(device)
    starts = step.query_starts.to(device)
    expected = pool(states.cpu(), step, PoolingConfig(modes=(mode,)))
    got = average(states, starts, unpooled, mode)
    torch.testing.assert_close(got.cpu(), expected, atol=2e-6, rtol=2e-6)
    states[4:74] = torch.nan
    spoilt = average(states, starts, unpooled, mode)
    assert spoilt.isnan().all(dim=1).tolist() == [False, False, True, False, False]
    others = [0, 1, 3, 4]
    assert torch.equal(spoilt[others], got[others])
