"""Modules that a worker does not import."""

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
from workers.device.choices import Choices
from workers.contract.model_config import AttentionKind
kind = AttentionKind(causal=False, scale=1.0)
select_backend("auto", AttentionNeeds(kind, "cpu", torch.float32, 4, 4, 32, 16), Choices())
print(*sys.modules)

from tests.engine_core.configs import execution_config
from workers.contract.share import shares_of
from workers.weights.loader import outline
(share,) = shares_of([2])
before = set(sys.modules)
assert outline(execution_config(), share).layers
print(*(set(sys.modules) - before))
"""


def test_an_encoder_starts_without_sampling_graphs_kernels_and_compiler() -> None:
    """The first operation on the device `meta` would import torch's compiler: the outline of a
    model computes nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(workers.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    at_start, for_an_outline = (set(line.split()) for line in ran.stdout.splitlines())
    assert "workers.stage.model_runner" in at_start
    needless = ("workers.graphs", "workers.sampling", "triton", "llguidance")
    assert not at_start & {*needless, "workers.stage.decode_runner", "workers.heads.decoder_head"}
    backends = {name for name in at_start if name.startswith("workers.attention.backends.")}
    assert backends == {"workers.attention.backends.sdpa"}
    kernels = {name for name in at_start if name.startswith("workers.kernels.")}
    interfaces = {"experts", "experts.kernels", "linear", "linear.fused"}
    assert kernels == {f"workers.kernels.{name}" for name in interfaces}
    assert len(for_an_outline) < 50
