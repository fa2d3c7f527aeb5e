"""Which layers each stage holds."""

from itertools import pairwise

import pytest

from workers.contract.model_config import ModelConfigError
from workers.contract.share import even_split, shares_of


@pytest.mark.parametrize("stage_layers", [(7,), (3, 1), (1, 1, 1), (9, 8, 8, 7)])
def test_shares_follow_one_another(stage_layers: tuple[int, ...]) -> None:
    shares = shares_of(stage_layers)
    assert tuple(len(share.layers) for share in shares) == stage_layers
    assert (shares[0].start, shares[-1].stop) == (0, sum(stage_layers))
    assert all(before.stop == after.start for before, after in pairwise(shares))
    stages = range(len(shares))
    assert [stage for stage in stages if shares[stage].first] == [0]
    assert [stage for stage in stages if shares[stage].last] == [stages[-1]]


def test_an_even_split_spares_the_last_stage_then_the_first() -> None:
    for num_layers in range(1, 20):
        for num_stages in range(1, num_layers + 1):
            sizes = even_split(num_layers, num_stages)
            assert (sum(sizes), len(sizes)) == (num_layers, num_stages)
            assert max(sizes) - min(sizes) <= 1
            assert sizes[-1] == min(sizes)
            assert num_stages < 3 or sizes[0] <= sizes[1]


def test_the_last_stage_holds_the_layers_that_stay_together() -> None:
    assert even_split(35, 2, 22) == (13, 22)
    assert even_split(35, 3, 22) == (7, 6, 22)
    assert even_split(35, 3, 4) == even_split(35, 3)
    assert even_split(35, 1, 22) == (35,)
    reason = "35 layers cannot be split over 15 pipeline stages: the last 22 stay together"
    with pytest.raises(ModelConfigError, match=reason):
        even_split(35, 15, 22)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="4 layers cannot be split over 5 pipeline stages"):
        even_split(4, 5)
