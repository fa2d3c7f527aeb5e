"""For all tests of workers."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As in a worker: for matrices this small, waking a second thread takes longer."""
    torch.set_num_threads(1)
