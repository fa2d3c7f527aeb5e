"""Cases and operands of kernels."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch


def cases(*axes: Mapping[str, Any] | Sequence[Any], usual: set[str]) -> list[Any]:
    """Every combination of values, one of each axis, called by their names: "one-other". Values
    without names are called as they are written.

    Those not in `usual` are long: Triton's interpreter takes seconds for each.
    """
    found: list[Any] = []
    named = [
        axis.items() if isinstance(axis, Mapping) else [(str(own), own) for own in axis]
        for axis in axes
    ]
    for case in product(*named):
        names, values = zip(*case, strict=True)
        name = "-".join(names)
        marks = () if name in usual else pytest.mark.long
        found.append(pytest.param(*values, id=name, marks=marks))
    assert usual <= {case.id for case in found}
    return found


def drawn(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers, the same in every run of a test (`conftest.py` seeds them)."""
    return torch.randn(shape).to(device, dtype)
