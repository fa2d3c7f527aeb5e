"""Networks of experts on a GPU, captured too, against the loop over experts on a CPU."""

from itertools import product

import pytest
import torch

from tests.gpu.test_fp8 import captured
from tests.workers.kernels.experts.networks import (
    CONFIGS,
    Kind,
    bound,
    network,
    relative_error,
    rows_of,
)
from workers.device.choices import Choices
from workers.layers.layer import Placement
from workers.models.feed_forward import MixedFeedForward

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


@pytest.fixture(scope="module")
def choices() -> Choices:
    """One for all, so that each shape is measured once."""
    return Choices()


def same_experts(want: MixedFeedForward, got: MixedFeedForward, rows: torch.Tensor) -> torch.Tensor:
    """For which rows, bool[N], both choose the same: logits in bfloat16 have ties."""
    chosen = want._router(rows.float().cpu()).experts.sort(dim=1).values
    return (chosen == got._router(rows).experts.cpu().sort(dim=1).values).all(dim=1)


@pytest.mark.parametrize(("kind", "count"), [*product(CONFIGS, (1, 17, 64, 1024))])
@torch.inference_mode()
def test_networks_captured_and_not(choices: Choices, kind: Kind, count: int) -> None:
    want = network(kind, Placement(torch.device("cpu"), torch.float32))
    got = network(kind, Placement(DEVICE, torch.bfloat16, choices))
    rows = rows_of(count, torch.bfloat16, DEVICE)
    own = got.add_to(torch.zeros_like(rows), rows)
    cpu = rows.float().cpu()
    alike = same_experts(want, got, rows)
    assert alike.float().mean() > 0.75
    wanted = want.add_to(torch.zeros_like(cpu), cpu)
    assert relative_error(own.cpu()[alike], wanted[alike]) < 2 * bound(kind)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = captured(lambda: got.add_to(torch.zeros_like(rows), rows))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, own)
