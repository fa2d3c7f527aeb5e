"""Starts on a GPU that go wrong: each ends with one line that says what to do, or goes on without
what failed."""

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from engine_core.refusal import RefusalError
from server.daemon.run import StartError, running_engine
from server.models.model_setup import EngineOptions
from tests.workers.attention_problems import attention_needs
from tests.workers.equivalence import DEMO
from workers.attention import backend_selection
from workers.attention.backend_selection import AttentionBackendError, select_backend
from workers.contract.attention_backends import AttentionBackendName
from workers.device.choices import Choices

pytestmark = pytest.mark.gpu

GIB = 1 << 30
NEEDS = attention_needs(device="cuda", dtype=torch.float32, head_dim=64, block_size=16)


@contextmanager
def only_free(amount: int) -> Generator[None]:
    """As if a neighbour held the rest of the device."""
    torch.cuda.empty_cache()
    held = torch.empty(torch.cuda.mem_get_info()[0] - amount, dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del held
        torch.cuda.empty_cache()


def failed_start(options: EngineOptions, capfd: pytest.CaptureFixture[str]) -> str:

    async def start() -> None:
        async with running_engine(DEMO, options):
            pass

    # Whichever is noticed first: that the worker is gone, or that the engine core is.
    with pytest.raises((StartError, RefusalError), match=r"exited with status 1|has stopped"):
        asyncio.run(start())
    lines = [line for line in capfd.readouterr().err.splitlines() if "ERROR   worker 0" in line]
    assert len(lines) == 1, lines
    print(lines[0])
    return lines[0]


def test_running_out_of_memory_says_what_to_lower_and_by_how_much(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # Of 20 GiB the cache takes what 6,400 sequences of 1,024 tokens need: 15.6.
    options = EngineOptions(
        device="cuda",
        attention_backend=AttentionBackendName.TRITON,
        kv_cache_memory=20 * GIB,
        max_running=6400,
    )
    with only_free(4 * GIB):
        line = failed_start(options, capfd)
    assert "out of memory while allocating the KV cache" in line
    found = re.search(r"lower --kv-cache-memory .*by at least ([\d.]+) GiB", line)
    assert found, line
    assert 11.5 < float(found[1]) < 15.7


def test_a_share_that_the_model_fills_says_by_how_much_to_raise_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = EngineOptions(
        device="cuda", attention_backend=AttentionBackendName.TRITON, memory_share=0.005
    )
    line = failed_start(options, capfd)
    assert re.search(r"no room for a KV cache: .* raise --memory-share, .* by at least", line), line


def test_without_a_gpu_cuda_is_an_error_and_auto_the_cpu() -> None:
    program = (
        "from server.models.devices import resolve_devices\n"
        "print(resolve_devices('auto', 1))\n"
        "resolve_devices('cuda', 1)\n"
    )
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=hidden,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "('cpu',)\n"
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith("this machine has 0 CUDA devices, not cuda:0")


def test_a_kernel_that_does_not_compile_gives_way_or_is_an_error_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = "tests.gpu.broken_backend:BrokenBackend"
    monkeypatch.setitem(backend_selection._BACKENDS, "triton", (path,))
    backend = select_backend("auto", NEEDS, Choices())
    assert type(backend).__name__ != "BrokenBackend"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (warning,) = [message for message in warnings if "broken_backend" in message]
    with pytest.raises(AttentionBackendError, match="'triton' fails on 'cuda'") as error:
        select_backend("triton", NEEDS, Choices())
    assert "these would do:" in str(error.value)
    for message in (warning, str(error.value)):
        assert "broken_backend fails: " in message
        assert "made not to compile" in message
        assert "\n" not in message
