"""Cases and operands of kernels."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch


def cases(*axes: Mapping[str, Any], usual: set[str]) -> list[Any]:
    """Every combination of named values, one of each axis, called by their names: "one-other".

    Those not in `usual` are long: Triton's interpreter takes seconds for each.
    """
    found: list[Any] = []
    for names in product(*axes):
        name = "-".join(names)
        values = [axis[own] for axis, own in zip(axes, names, strict=True)]
        marks = () if name in usual else pytest.mark.long
        found.append(pytest.param(*values, id=name, marks=marks))
    assert usual <= {case.id for case in found}
    return found


def drawn(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers, the same in every run of a test (`conftest.py` seeds them)."""
    return torch.randn(shape).to(device, dtype)
