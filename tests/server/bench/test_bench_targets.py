"""What each stage of a pipeline did during a run; goals, and the units of figures."""

from pathlib import Path

import msgspec
import pytest

from engine_core.messages import StageTime
from server.bench.measurement import Figures, is_rate, stage_figures, unit_of
from server.bench.report import PIPELINE_HEADLINES, Target, Targets, read_targets
from server.bench.workloads import DECISIONS, GENERATION, HTTP, PREFILL


def time(busy: float, waiting: float, transfer: float, idle: float) -> StageTime:
    return StageTime(busy_s=busy, waiting_s=waiting, transfer_s=transfer, idle_s=idle)


BEFORE = [time(5, 1, 2, 3), time(4, 3, 2, 1)]
AFTER = [time(14, 1.5, 2.3, 3.2), time(13.5, 3.2, 2.1, 1.2)]


def test_shares_are_of_the_time_between_two_heartbeats() -> None:
    assert stage_figures(BEFORE, AFTER) == pytest.approx(
        {
            **shares(0, busy=0.9, waiting=0.05, transfer=0.03, idle=0.02),
            **shares(1, busy=0.95, waiting=0.02, transfer=0.01, idle=0.02),
            "stage_0_seconds": 10,
            "stage_1_seconds": 10,
            "bubble_share": 0.1,  # of the worst stage
        }
    )


def shares(stage: int, **spent: float) -> Figures:
    return {f"stage_{stage}_{name}_share": share for name, share in spent.items()}


def test_there_are_none_of_one_stage_or_without_a_step() -> None:
    assert stage_figures(BEFORE[:1], AFTER[:1]) == {}
    assert stage_figures(BEFORE, BEFORE) == {}


def test_the_source_checkout_has_a_goal_for_every_headline_and_nothing_else() -> None:
    """But for the rate of `skew`, whose goal are its bubbles."""
    targets = read_targets()
    cases = (*GENERATION, *PREFILL, *DECISIONS, *HTTP)
    headlines = {case.name: set(case.headlines) for case in cases}
    headlines["skew"] = set(PIPELINE_HEADLINES)
    headlines["rand"] |= PIPELINE_HEADLINES
    assert {name: set(case) for name, case in targets.cases.items()} == headlines
    for case in targets.cases.values():
        assert all(target.goal for target in case.values())
        assert all(case[name].vllm for name in case.keys() - PIPELINE_HEADLINES)


def test_an_installed_wheel_has_none(tmp_path: Path) -> None:
    assert read_targets(tmp_path / "benchmarks" / "targets.toml") == Targets()


def test_a_file_of_targets(tmp_path: Path) -> None:
    file = tmp_path / "targets.toml"
    file.write_text('vllm_version = "1"\n[cases.one.seconds]\ngoal = [2]\n')
    targets = read_targets(file)
    assert targets.of("one", "seconds") == Target(goal=(2.0,))
    assert targets.of("one", "requests_per_s") == targets.of("two", "seconds") == Target()
    file.write_text(file.read_text().replace("goal", "gaol"))
    with pytest.raises(msgspec.ValidationError, match="gaol"):
        read_targets(file)


@pytest.mark.parametrize(
    ("figure", "unit", "rate"),
    [
        ("output_tokens_per_s", "tok/s", True),
        ("requests_per_s", "req/s", True),
        ("sequences_per_s", "seq/s", True),
        ("questions_per_s", "questions/s", True),
        ("ttft_p50_ms", "ms", False),
        ("seconds", "s", False),
        ("idle_share", "", False),
    ],
)
def test_a_figure_ends_with_its_unit(figure: str, unit: str, rate: bool) -> None:
    assert (unit_of(figure), is_rate(figure)) == (unit, rate)
