"""Warm-up compiles every sampling kernel."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.sampling.logits import VOCABULARY, logits_of
from tests.workers.sampling.sampling_rows import allowing, filled_table, init
from workers.sampling import sampler
from workers.sampling.sampler import warm_up_sampling
from workers.sampling.sampling_table import SamplingTable, TokenMask


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
