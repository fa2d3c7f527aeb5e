"""Log-probabilities of given tokens of some of a step's rows."""

import numpy as np
import pytest
import torch

from tests.engine_core.simulated_model import ids
from workers.contract.messages import SlotInit
from workers.contract.token_sampling import GREEDY
from workers.device.transfer import to_device
from workers.sampling.reading import ReadTokens, read_logits
from workers.sampling.sampling_table import SamplingTable

CPU = torch.device("cpu")
VOCABULARY = 3000


def read(table: SamplingTable, slots: list[int], logits: torch.Tensor) -> list[float]:
    found = table.read_tokens(np.array(slots, np.int32))
    return read_logits(logits, ReadTokens(*to_device(found, CPU))).tolist() if found else []


def begin(table: SamplingTable, **slots: list[int]) -> None:
    for slot, tokens in slots.items():
        own = {"slot": int(slot[1:]), "prompt_len": 1, "seed": 0, "sampling": GREEDY}
        table.update([SlotInit(**own, read=ids(*tokens))])


def test_each_row_that_reads_gets_its_own_tokens() -> None:
    table = SamplingTable(6, VOCABULARY, CPU)
    begin(table, s0=[5], s1=[], s3=[7, 7, 2999], s5=[0, 1])
    logits = 20 * torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1))
    whole = logits.double().log_softmax(-1)
    # Of slots 5, 1, 3 and 2, in this order, two read.
    expected = [whole[0, 0], whole[0, 1], whole[2, 7], whole[2, 7], whole[2, 2999]]
    assert read(table, [5, 1, 3, 2], logits) == pytest.approx([*map(float, expected)], abs=1e-5)
    assert read(table, [0], logits[3:]) == pytest.approx([float(whole[3, 5])], abs=1e-5)
    assert read(table, [1, 2, 4], logits[:3]) == []
    begin(table, s3=[])
    assert read(table, [3], logits[:1]) == [], "whoever has the slot next reads nothing"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_spoils_its_own_values_alone(bad: float) -> None:
    table = SamplingTable(2, VOCABULARY, CPU)
    begin(table, s0=[1], s1=[1, 2])
    logits = torch.zeros(2, VOCABULARY)
    logits[1, 9] = bad
    values = read(table, [0, 1], logits)
    assert np.isfinite(values).tolist() == [True, False, False]


def test_without_tokens_logits_are_as_they_were() -> None:
    logits = torch.randn(3, 2, dtype=torch.bfloat16)
    assert torch.equal(read_logits(logits), logits.float())
