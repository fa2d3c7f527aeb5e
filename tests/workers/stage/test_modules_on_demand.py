"""An encoder's worker imports nothing that only generators use."""

import subprocess
import sys
from pathlib import Path

import workers

PROGRAM = """
import sys
import torch
import workers.stage.worker
from workers.attention.backend_selection import select_backend
from workers.attention.base import AttentionNeeds
select_backend("auto", AttentionNeeds(False, "cpu", torch.float32, 4, 4, 32, 16))
print(*sys.modules, sep="\\n")
"""


def test_an_encoder_starts_without_sampling_graphs_and_kernels() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(workers.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ran.stdout.split())
    assert "workers.stage.encode_runner" in loaded
    needless = ("workers.graphs", "workers.kernels", "workers.sampling", "triton", "llguidance")
    assert not loaded & {*needless, "workers.stage.decode_runner", "workers.heads.generate"}
