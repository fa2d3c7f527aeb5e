"""What every GPU test needs: a GPU."""

import asyncio
import os
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from workers.contract.process import NO_MULTICAST

SOURCE = Path(__file__).parents[2]

OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Torch's switch for several stages on one GPU; tests alone set it."""

_UNSEEN_BYTES = 64 << 20
"""Memory of a GPU that does not count as used."""


def run(work: Coroutine[object, object, None], seconds: float) -> None:
    """An engine that hangs is a failure, not a hanging test."""
    asyncio.run(asyncio.wait_for(work, seconds))


@contextmanager
def memory_given_back(devices: tuple[str, ...]) -> Generator[None]:
    """The block leaves no memory of the GPUs in use, ten seconds after its end at the latest."""
    torch.cuda.empty_cache()
    gpus = sorted(set(devices))
    free = [torch.cuda.mem_get_info(gpu)[0] for gpu in gpus]
    yield
    deadline = time.monotonic() + 10
    for gpu, before in zip(gpus, free, strict=True):
        while torch.cuda.mem_get_info(gpu)[0] < before - _UNSEEN_BYTES:
            assert time.monotonic() < deadline, f"memory of {gpu} is not given back"
            time.sleep(0.1)


def pytest_configure(config: pytest.Config) -> None:
    """The project's markers, for runs with a configuration of their own."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "timeout: seconds, obeyed where pytest-timeout is installed")
    # torch says so of what it can do to find steps that wait for the device.
    config.addinivalue_line("filterwarnings", "ignore:Synchronization debug mode")


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="package")
def _environment() -> Generator[None]:
    """No multicast, here and in children. They find our source, which a machine with a GPU may have
    without an installation: processes do not search their folder."""
    given = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in NO_MULTICAST.items():
            environment.setenv(name, value)
        environment.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *filter(None, [given])]))
        yield
