"""What a worker does not import."""

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
from workers.contract.model_config import AttentionKind
kind = AttentionKind(causal=False, scale=1.0)
select_backend("auto", AttentionNeeds(kind, "cpu", torch.float32, 4, 4, 32, 16))
print(*sys.modules, sep="\\n")
"""

OUTLINE = """
import sys
from tests.engine_core.configs import execution_config
from workers.contract.share import shares_of
from workers.weights.loader import outline
(share,) = shares_of([2])
before = set(sys.modules)
assert outline(execution_config(), share).layers
print(*(set(sys.modules) - before), sep="\\n")
"""


def test_an_encoder_starts_without_sampling_graphs_and_kernels() -> None:
    loaded = modules_of(PROGRAM)
    assert "workers.stage.model_runner" in loaded
    needless = ("workers.graphs", "workers.sampling", "triton", "llguidance")
    assert not loaded & {*needless, "workers.stage.decode_runner", "workers.heads.decoder_head"}
    kernels = {name for name in loaded if name.startswith("workers.kernels.")}
    assert kernels == {"workers.kernels.linear", "workers.kernels.linear.fused"}  # the interface


def test_the_outline_of_a_model_computes_nothing() -> None:
    """The first operation on the device `meta` would import torch's compiler."""
    assert len(modules_of(OUTLINE)) < 50


def modules_of(program: str) -> set[str]:
    """What a program prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(workers.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())
