"""For all tests of workers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.checkpoints import save_llama


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As in a worker: for matrices this small, waking a second thread takes longer."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama that no test changes."""
    folder = tmp_path_factory.mktemp("llama")
    save_llama(folder)
    return folder


@pytest.fixture
def pinned_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is pinned only where there is a GPU."""
    if not torch.cuda.is_available():
        real = torch.empty

        def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            return real(*size, **options)

        monkeypatch.setattr(torch, "empty", empty)
