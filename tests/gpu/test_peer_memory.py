"""Hidden states through peer memory: every byte of 100,000 steps, and what a hop costs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import OVERLAPPING

pytestmark = pytest.mark.gpu

HOPS = 100_000


def test_every_byte_arrives_in_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = torch.cuda.device_count() > 1
    if not several:
        monkeypatch.setenv(OVERLAPPING, "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hops = HOPS if several else HOPS // 20  # two processes take turns on one GPU
    sides = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.gpu.peer_hops", str(stage)),
                *(f"cuda:{stage if several else 0}", str(tmp_path / "rendezvous"), str(hops)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for stage in range(2)
    ]
    try:
        (times, _), (wrong, _) = (side.communicate(timeout=170) for side in sides)
    finally:
        for side in sides:
            side.kill()
            side.wait()
    print(f"rows, µs of GPU and of CPU there and back, {'two GPUs' if several else 'one GPU'}:")
    print(times)
    assert [side.returncode for side in sides] == [0, 0]
    assert int(wrong) == 0
    assert len(times.split()) == 3 * 5
