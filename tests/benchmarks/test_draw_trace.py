"""A picture of a trace shows every stage, and all that it did in the part that is drawn."""

import sys
from pathlib import Path

import pytest
from matplotlib import colors, image

from benchmarks import draw_trace
from benchmarks.draw_trace import COLOURS, default_window, read_tracks
from engine_core.messages import TracedStep
from server.trace import chrome_trace
from workers.contract.messages import StepTimes

pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra `bench`)")


STEPS = 100
STEP_US = 1000


def traced(step: int) -> TracedStep:
    """Each step takes stage 0 0.9 ms and stage 1, which waits 0.4 ms for it, 0.5 ms; a step in four
    is of prompts, one of both. Before every other step, stage 1 is idle for 0.1 ms."""
    start = 5_000_000 + step * STEP_US
    return TracedStep(
        step=step,
        rows=4,
        tokens=8,
        prompt_tokens=(0, 0, 3, 8)[step % 4],
        context_tokens=100,
        continued=True,
        times=[
            StepTimes(start_us=start, wait_us=0, busy_us=900, transfer_us=100),
            StepTimes(start_us=start + 600 + step % 2 * 100, wait_us=400, busy_us=500),
        ],
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.json"
    steps = {"quiet": [], "busy": [traced(step) for step in range(STEPS)]}
    devices = {"quiet": ["cpu"], "busy": ["cuda:0", "cuda:1"]}
    file.write_bytes(chrome_trace(steps, devices))
    return file


def test_tracks_and_their_shares(trace: Path) -> None:
    first, second = read_tracks(trace)
    assert (first.name, second.name) == ("stage 0 (cuda:0)", "stage 1 (cuda:1)")
    names = ("prefill", "decode", "mixed")
    assert first.share(*names) == pytest.approx(0.9)
    assert first.share("transfer") == pytest.approx(0.1)
    assert second.share(*names) == pytest.approx(0.5, abs=0.01)
    assert second.share("waiting") == pytest.approx(0.4, abs=0.01)
    assert second.share(*COLOURS) == pytest.approx(1.0)
    start, end = default_window([first, second])
    assert end - start == pytest.approx(24, rel=0.02)
    assert (start + end) / 2 == pytest.approx(50, rel=0.02)


def test_a_picture_has_everything_that_happened_in_its_window(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "trace.png"
    command = f"draw_trace {trace} -o {picture} --window 40 48 --title two"
    monkeypatch.setattr(sys, "argv", command.split())
    draw_trace.main()
    pixels = image.imread(picture)[:, :, :3]
    rows, drawn = len(pixels), {}
    for name, colour in COLOURS.items():
        found = abs(pixels - colors.to_rgb(colour)).max(axis=2) < 1 / 255
        # Without the legend, in the last rows.
        drawn[name] = found[: round(rows * 0.8)].sum()
    assert all(count > 500 for count in drawn.values()), drawn
    # 7.2 ms and 4 ms of computing, 3.2 of waiting.
    computing = drawn["prefill"] + drawn["decode"] + drawn["mixed"]
    assert computing / drawn["waiting"] == pytest.approx(11.2 / 3.2, rel=0.15)


def test_a_trace_without_steps_is_one_line(trace: Path) -> None:
    with pytest.raises(SystemExit, match=r"^\S+trace\.json: no steps of quiet$"):
        read_tracks(trace, "quiet")
