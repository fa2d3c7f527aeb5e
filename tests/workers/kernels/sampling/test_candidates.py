"""More candidates than there is room for."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.sampling.logits import logits_of
from tests.workers.sampling.sampling_rows import rows
from workers.device.transfer import to_device
from workers.kernels.sampling.draw_tokens import DrawParameters, draw_tokens
from workers.kernels.sampling.logit_rows import LogitRows
from workers.sampling import sampler
from workers.sampling.sampling_table import SamplingRows


def draw(logits: torch.Tensor, parameters: SamplingRows, capacity: int) -> list[int]:
    """What the kernels draw where only `capacity` candidates fit."""
    own = parameters.parameters
    columns = [1 / own["temperature"], parameters.uniforms(), own["top_p"], own["min_p"]]
    columns.append(own["top_k"])
    packed = [np.ascontiguousarray(column) for column in columns]
    given = DrawParameters(*to_device(packed, logits.device))
    return draw_tokens(LogitRows(logits), given, truncated=True, capacity=capacity).tolist()


@pytest.mark.parametrize("given", [{"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}], ids=str)
def test_too_many_candidates_make_no_difference(
    given: dict[str, Any], device: torch.device
) -> None:
    logits = logits_of(3, seed=3, device=device, dtype=torch.bfloat16)
    parameters = rows(3, index=np.arange(3), **given)
    few, enough = (draw(logits, parameters, capacity) for capacity in (4, 1024))
    assert few == enough == sampler.draw(logits.float().cpu(), parameters).tolist()
