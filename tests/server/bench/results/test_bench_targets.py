"""What the figures of `penstock bench` are compared with, where that is known."""

from pathlib import Path

import msgspec
import pytest

from server.bench.cases.workloads import GENERATION, HTTP, PREFILL
from server.bench.report import PIPELINE_HEADLINES
from server.bench.results.measurement import is_rate, unit_of
from server.bench.results.targets import Target, Targets, for_gpus, read_targets


def test_the_source_checkout_has_a_goal_for_every_headline_and_nothing_else() -> None:
    """But for the rate of `skew`, whose goal are its bubbles."""
    targets = read_targets()
    headlines = {case.name: set(case.headlines) for case in (*GENERATION, *PREFILL, *HTTP)}
    headlines["skew"] = set(PIPELINE_HEADLINES)
    headlines["rand"] |= PIPELINE_HEADLINES
    assert {name: set(case) for name, case in targets.cases.items()} == headlines
    for case in targets.cases.values():
        assert all(target.goal for target in case.values())
        assert all(case[name].vllm for name in case.keys() - PIPELINE_HEADLINES)


def test_an_installed_wheel_has_none(tmp_path: Path) -> None:
    assert read_targets(tmp_path / "benchmarks" / "targets.toml") == Targets()


def test_a_misspelled_key_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "targets.toml"
    file.write_text('vllm_version = "1"\n[cases.one.seconds]\ngaol = [1.0]\n')
    with pytest.raises(msgspec.ValidationError, match="gaol"):
        read_targets(file)


def test_a_figure_without_a_target(tmp_path: Path) -> None:
    file = tmp_path / "targets.toml"
    file.write_text('vllm_version = "1"\n[cases.one.seconds]\ngoal = [2]\n')
    targets = read_targets(file)
    assert targets.of("one", "seconds") == Target(goal=(2.0,))
    assert targets.of("one", "requests_per_s") == targets.of("two", "seconds") == Target()


def test_targets_by_gpus() -> None:
    assert [for_gpus((1.0, 2.0), gpus) for gpus in (1, 2, 3, 4)] == [1.0, 2.0, None, None]


@pytest.mark.parametrize(
    ("figure", "unit", "rate"),
    [
        ("output_tokens_per_s", "tok/s", True),
        ("requests_per_s", "req/s", True),
        ("sequences_per_s", "seq/s", True),
        ("ttft_p50_ms", "ms", False),
        ("seconds", "s", False),
        ("idle_share", "", False),
    ],
)
def test_a_figure_ends_with_its_unit(figure: str, unit: str, rate: bool) -> None:
    assert (unit_of(figure), is_rate(figure)) == (unit, rate)
