"""Values that could not work are refused by a sentence that names them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import Helm3, Helm4, HelmError, Values

TRIED = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())
BAD: dict[str, dict[str, Any]] = TRIED["bad"]
GOOD: dict[str, Values] = TRIED["good"]


@pytest.mark.parametrize("why", BAD)
def test_bad_values_are_refused_by_name(why: str, helm3: Helm3, helm4: Helm4) -> None:
    for helm in (helm3, helm4):
        with pytest.raises(HelmError) as refused:
            helm.template(BAD[why]["values"])
        assert [word for word in BAD[why]["says"] if word not in str(refused.value)] == []


@pytest.mark.parametrize("why", GOOD)
def test_what_just_works_is_not(why: str, helm3: Helm3, helm4: Helm4) -> None:
    assert helm3.template(GOOD[why]) == helm4.template(GOOD[why])
