"""The stage's record of each slot, and the random numbers that it leads to."""

import msgspec
import numpy as np
import torch

from tests.workers.sampling.sampling_rows import chi_square
from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenSampling
from workers.sampling.sampling_table import SAMPLING_RECORD, SamplingTable, uniforms


def test_every_declared_parameter_is_a_column_and_reaches_the_rows() -> None:
    names = TokenSampling.__struct_fields__
    assert SAMPLING_RECORD.names is not None
    assert SAMPLING_RECORD.names[: len(names)] == names
    # Numbers that float32 holds exactly, a different one for each parameter.
    defaults = msgspec.structs.asdict(TokenSampling())
    given = {name: type(default)(2 + i) for i, (name, default) in enumerate(defaults.items())}
    table = SamplingTable(3, 8, torch.device("cpu"))
    sampling = msgspec.structs.replace(TokenSampling(), **given)
    assert sampling.penalised
    table.update([SlotInit(slot=1, prompt_len=4, seed=2**63 - 1, sampling=sampling)])
    rows = table.rows(np.array([1], np.int32), np.array([9], np.int32))
    assert {name: rows.parameters[name].item() for name in names} == given
    assert rows.parameters["seed"].tolist() == [2**63 - 1]
    assert rows.index.tolist() == [9 - 4]


def test_seeds_and_indices_are_both_uniform_and_unrelated() -> None:
    zeros, counting = np.zeros(1 << 14, np.int32), np.arange(1 << 14, dtype=np.int32)
    seeds = counting.astype(np.uint64)
    by_index = uniforms(zeros.astype(np.uint64) + np.uint64(2**63 - 1), counting)
    by_seed = uniforms(seeds, zeros)
    for drawn in (by_index, by_seed):
        assert drawn.min() >= 0
        assert drawn.max() < 1
        counts = np.histogram(drawn, bins=64, range=(0, 1))[0]
        assert chi_square(counts, np.full(64, len(drawn) / 64)) < 103.4  # p = 0.001
    assert abs(np.corrcoef(by_index, by_seed)[0, 1]) < 0.03
    assert abs(np.corrcoef(by_index[1:], by_index[:-1])[0, 1]) < 0.03
    next_seed = uniforms(seeds + np.uint64(1), zeros)
    assert abs(np.corrcoef(by_seed, uniforms(seeds, zeros + np.int32(1)))[0, 1]) < 0.03
    assert not np.isin(uniforms(seeds[:64], zeros[:64] + np.int32(1)), next_seed[:64]).any()
