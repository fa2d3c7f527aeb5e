"""The kernels run where there is a GPU on it, elsewhere in Triton's interpreter on the CPU
(`tests/conftest.py`)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The interpreter takes loop bounds from arrays of one element, which NumPy deprecates."""
    known = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(known)


@pytest.fixture(autouse=True)
def _arithmetic_of_a_gpu() -> Iterator[None]:
    """NumPy, which computes for the interpreter, does not warn of infinities and NaN."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True)
def _fp8_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers round to the nearest in E4M3; in the interpreter's own casts a carry gets lost."""
    convert = interpreter._convert_float

    def converted(numbers: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if (source, target) != (tl.float32, tl.float8e4nv):
            return convert(numbers, source, target, rounding)
        return torch.from_numpy(numbers.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", converted)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if _INTERPRETED else "cuda")


_DTYPES = [
    torch.float32,
    torch.bfloat16,
    pytest.param(torch.float16, marks=pytest.mark.long),
]


@pytest.fixture(params=_DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def rounding(dtype: torch.dtype) -> float:
    """The relative error of float32 arithmetic rounded once; bfloat16 the interpreter truncates."""
    cut = 1.01 if _INTERPRETED and dtype == torch.bfloat16 else 0.51
    return cut * torch.finfo(dtype).eps + 3e-6


_PRODUCTS = [torch.float32, torch.float16]
if not _INTERPRETED:
    _PRODUCTS.append(torch.bfloat16)  # whose bits the interpreter multiplies as integers


@pytest.fixture(params=_PRODUCTS, ids=str)
def dot_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """What a kernel with a matrix product can be tested in."""
    return request.param
