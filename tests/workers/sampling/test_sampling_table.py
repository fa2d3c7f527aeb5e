"""The stage's record of each slot follows from the declared sampling parameters."""

import msgspec
import numpy as np
import torch

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenSampling
from workers.sampling.sampling_table import SAMPLING_RECORD, SamplingTable


def test_every_declared_parameter_is_a_column_and_reaches_the_rows() -> None:
    names = TokenSampling.__struct_fields__
    assert SAMPLING_RECORD.names is not None
    assert SAMPLING_RECORD.names[: len(names)] == names
    # Numbers that float32 holds exactly, a different one for each parameter.
    given = {name: type(default)(2 + i) for i, (name, default) in enumerate(defaults().items())}
    table = SamplingTable(3, 8, torch.device("cpu"))
    sampling = msgspec.structs.replace(TokenSampling(), **given)
    assert sampling.penalised
    table.update([SlotInit(slot=1, prompt_len=4, seed=2**63 - 1, sampling=sampling)])
    rows = table.rows(np.array([1], np.int32), np.array([9], np.int32))
    assert {name: rows.parameters[name].item() for name in names} == given
    assert rows.parameters["seed"].tolist() == [2**63 - 1]
    assert rows.index.tolist() == [9 - 4]


def defaults() -> dict[str, float]:
    return msgspec.structs.asdict(TokenSampling())
