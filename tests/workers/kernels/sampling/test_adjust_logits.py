"""Masks, biases and penalties by the kernels, against the CPU's, and what warm-up compiles."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.cases import cases
from tests.workers.kernels.sampling.logits import VOCABULARY, logits_of
from tests.workers.sampling.sampling_rows import allowing, filled_table, init
from workers.sampling import cuda, sampler
from workers.sampling.sampler import warm_up_sampling
from workers.sampling.sampling_table import SamplingTable, TokenMask


@pytest.mark.parametrize(
    ("temperature", "dtype"),
    cases(
        {"0": 0.0, "0.8": 0.8},
        (torch.float32, torch.bfloat16, torch.float16),
        usual={"0-torch.float32", "0-torch.bfloat16"},
    ),
)
def test_adjustments_equal_those_of_the_cpu(
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
        mask = TokenMask(np.array([1, 4], np.int32), lambda: words) if step % 2 else None
        expected = sampler.sample(logits.float().cpu(), parameters, on_cpu.counts, mask)
        if mask is not None:
            mask = mask._replace(words=lambda: words.to(device))
        tokens = cuda.sample(
            logits, parameters, parameters.adjustments(mask), on_device.counts, mask
        )
        assert tokens.tolist() == expected.tolist()
        assert not 4 <= tokens[6] < 2000
        # `sampler.sample` counts the tokens of the device in the same way.
        counted = torch.tensor([1, 3, 5], device=device)
        on_device.counts.add(counted, tokens[counted].long())
    assert torch.equal(on_device.counts.table.cpu(), on_cpu.counts.table)


@pytest.mark.parametrize("given", [{}, {"temperature": 1.0, "top_k": 1}], ids=str)
def test_a_small_penalty_is_not_lost_in_bfloat16(
    given: dict[str, Any], device: torch.device
) -> None:
    logits = torch.full((1, 300), 20.0, dtype=torch.bfloat16, device=device)
    table, parameters = filled_table(300, [init(0, [5], presence_penalty=0.01, **given)], device)
    for step in range(3):
        tokens = cuda.sample(logits, parameters, parameters.adjustments(), table.counts, None)
        assert tokens.tolist() == [step]
        table.counts.add(torch.tensor([0], device=device), tokens.long())


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
    masks = [None, TokenMask(np.zeros(1, np.int32), lambda: words)]
    for one, two, three, mask in product(drawn, penalised, biased, masks):
        given: dict[str, Any] = {**one, **two, **three}
        for count in range(1, 6):
            inits = [init(slot, [1], **given) for slot in range(count)]
            table, parameters = filled_table(VOCABULARY, inits, device)
            logits = logits_of(count, 0, device, torch.bfloat16)
            sampler.sample(logits, parameters, table.counts, mask)
    assert compiled == []
