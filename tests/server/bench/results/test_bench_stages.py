"""What each stage of a pipeline did during a run."""

import pytest

from engine_core.messages import StageTime
from server.bench.results.engine_counters import stage_figures, stage_lines


def time(busy: float, waiting: float, transfer: float, idle: float) -> StageTime:
    return StageTime(busy_s=busy, waiting_s=waiting, transfer_s=transfer, idle_s=idle)


BEFORE = [time(5, 1, 2, 3), time(4, 3, 2, 1)]
AFTER = [time(14, 1.5, 2.3, 3.2), time(13.5, 3.2, 2.1, 1.2)]


def test_shares_are_of_the_time_between_two_heartbeats() -> None:
    figures = stage_figures(BEFORE, AFTER)
    seconds = [figures["stage_0_seconds"], figures["stage_1_seconds"]]
    assert seconds == pytest.approx([10, 10])
    assert [
        figures[f"stage_0_{name}_share"] for name in ("busy", "waiting", "transfer", "idle")
    ] == (pytest.approx([0.9, 0.05, 0.03, 0.02]))
    assert figures["stage_1_busy_share"] == pytest.approx(0.95)


def test_the_bubble_is_that_of_the_worst_stage() -> None:
    assert stage_figures(BEFORE, AFTER)["bubble_share"] == pytest.approx(0.1)


def test_there_are_none_of_one_stage_or_without_a_step() -> None:
    assert stage_figures(BEFORE[:1], AFTER[:1]) == {}
    assert stage_figures(BEFORE, BEFORE) == {}


def test_a_line_a_stage() -> None:
    assert list(stage_lines(stage_figures(BEFORE, AFTER))) == [
        "stage 0: busy 90.0%, waiting 5.0%, transfer 3.0%, idle 2.0% of 10.00 s",
        "stage 1: busy 95.0%, waiting 2.0%, transfer 1.0%, idle 2.0% of 10.00 s",
    ]
    assert list(stage_lines({"seconds": 1.0})) == []
