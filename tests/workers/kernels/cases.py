"""Cases of kernels, of which Triton's interpreter takes seconds for each."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest


def cases(*axes: Mapping[str, Any], usual: set[str]) -> list[Any]:
    """Every combination of named values, one of each axis. Those not in `usual` are long.

    A combination is called by its values' names: "one-other".
    """
    found: list[Any] = []
    for names in product(*axes):
        name = "-".join(names)
        values = [axis[own] for axis, own in zip(axes, names, strict=True)]
        marks = () if name in usual else pytest.mark.long
        found.append(pytest.param(*values, id=name, marks=marks))
    assert usual <= {case.id for case in found}
    return found
