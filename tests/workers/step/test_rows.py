"""Groups of a step's rows."""

import numpy as np

from tests.workers.step_maker import int32
from workers.contract.messages import DecodeStep
from workers.step.rows import StepRows


def rows_of(groups: list[int]) -> StepRows:
    count = 12
    message = DecodeStep(
        step=0,
        tokens=bytes(4 * count),
        query_lens=int32([1] * count),
        slots=int32(list(range(count))),
        sample=bytes(count),
        starts=int32([500] * count),
        groups=int32(groups),
    )
    return StepRows.of(message)


def test_groups_of_a_subset_are_counted_anew() -> None:
    rows = rows_of([1, 3, 128, 4, 2, 64, 8, 4, 256])
    assert rows.groups.tolist() == [[1, 3, 128], [4, 2, 64], [8, 4, 256]]
    subset = np.array([0, 2, 3, 5, 8, 9, 11])
    assert rows.groups_among(subset).tolist() == [[1, 2, 128], [4, 3, 256]]
    assert rows.groups_among(np.arange(12)).tolist() == rows.groups.tolist()


def test_a_step_without_groups() -> None:
    assert rows_of([]).groups.shape == (0, 3)
