"""What every GPU test needs: a GPU."""

import os
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """The project's marker, for runs with a configuration of their own."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _children_find_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU may have the source alone, and processes do not search their folder."""
    given = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *filter(None, [given])]))
