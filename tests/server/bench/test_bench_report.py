"""What `penstock bench` reports: medians, verdicts, notes, progress, pictures."""

import asyncio
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from engine_core.messages import StageTime
from server import cli
from server.batches.progress import progress_shown
from server.bench.machine import this_machine
from server.bench.measurement import BenchError, Figures, milliseconds, stage_figures
from server.bench.report import (
    CaseReport,
    Report,
    Targets,
    details,
    drawing_library,
    failed,
    measured,
    plot,
    read_targets,
    table,
)
from server.bench.workloads import GENERATION, HTTP

CASES = {case.name: case for case in (*GENERATION, *HTTP)}
TARGETS = read_targets()
VLLM = "0.25.1"
PACED = {"ttft_p50_ms": 18.0, "ttft_p99_ms": 24.1, "tpot_mean_ms": 4.5}


def report_of(
    name: str, *runs: Figures, stages: int = 1, layers: tuple = (), notes: tuple = ()
) -> CaseReport:
    engine = {"devices": ["cuda:0"] * stages, "stage_layers": layers}
    return measured(CASES[name], runs, targets=TARGETS, notes=notes, engine=engine)


def verdicts(report: CaseReport) -> list[str]:
    return [row.verdict for row in report.rows]


def test_at_most_and_several_goals() -> None:
    assert verdicts(report_of("http-gen-16", PACED)) == ["pass", "miss", "pass"]


@pytest.mark.parametrize(
    ("case", "ours", "stages", "layers", "expected"),
    [
        ("one", 235.0, 1, (), ("one", 235, "pass")),
        ("one", 234.9, 1, (), ("one", 235, "miss")),
        ("dec", 33_000.0, 2, (), ("dec (2 stages)", 33_000, "pass")),
        ("dec", 39_000.0, 4, (), ("dec (4 stages)", 38_500, "pass")),
        ("dec", 39_000.0, 4, (9, 9, 8, 6), ("dec (9,9,8,6)", 40_000, "miss")),
        ("long32k", 0.34, 4, (8, 8, 8, 8), ("long32k (8,8,8,8)", 0.34, "pass")),
        ("b16", 90.0, 2, (), ("b16 (2 stages)", None, "")),
    ],
)
def test_goals_of_stages_and_of_a_chosen_partition(case, ours, stages, layers, expected) -> None:
    figures = {CASES[case].headlines[0]: ours}
    (row,) = report_of(case, figures, stages=stages, layers=layers).rows
    assert (row.label, row.goal, row.verdict) == expected


def test_figures_of_others_are_those_of_the_number_of_stages() -> None:
    (row,) = report_of("dec", {"output_tokens_per_s": 1.0}, stages=2).rows
    assert (row.vllm, row.floor) == (27_275, 37_000)


def test_the_bubbles_of_a_pipeline_are_judged_beside_its_rate() -> None:
    rate, bubble = report_of("skew", {"requests_per_s": 60.0, "bubble_share": 0.06}, stages=2).rows
    assert (rate.label, rate.goal) == ("skew (2 stages)", None)
    assert (bubble.label, bubble.goal, bubble.verdict) == ("skew bubble (2 stages)", 0.05, "miss")


def test_each_stage_has_a_line() -> None:
    stages = stage_figures([spent(0.0, 0.0), spent(0.0, 0.0)], [spent(9.5, 0.5), spent(9.0, 1.0)])
    report = report_of("rand", {"requests_per_s": 90.0} | stages, stages=2)
    assert verdicts(report) == ["pass", "miss"]
    lines = [
        "stage 0: busy 95.0%, waiting 5.0%, transfer 0.0%, idle 0.0% of 10.00 s",
        "stage 1: busy 90.0%, waiting 10.0%, transfer 0.0%, idle 0.0% of 10.00 s",
    ]
    assert details(report).splitlines()[1:] == [f"  {line}" for line in lines]
    assert table([report], VLLM).splitlines()[3:] == [f"rand: {line}" for line in lines]


def spent(busy: float, waiting: float) -> StageTime:
    return StageTime(busy_s=busy, waiting_s=waiting, transfer_s=0.0, idle_s=0.0)


def test_what_differs_is_not_judged() -> None:
    report = report_of("one", {"output_tokens_per_s": 9e9}, notes=("on a CPU", "in float32"))
    assert verdicts(report) == [""]
    assert "one: not judged: on a CPU, in float32" in table([report], VLLM)


def test_medians_of_the_runs() -> None:
    runs = [{"output_tokens_per_s": value, "steps": 5.0} for value in (230.0, 240.0, 236.0)]
    report = report_of("one", *runs)
    assert report.figures == {"output_tokens_per_s": 236.0, "steps": 5.0}
    assert report.runs == runs
    head, line = table([report], VLLM).splitlines()
    assert head.split() == "case ours unit vLLM 0.25.1 floor goal runs".split()
    assert line.split() == "one 236 tok/s 197 249 ≥ 235 pass 230 to 240".split()


def test_how_far_starts_differ() -> None:
    report = None
    for rate in (60.0, 66.0, 63.0):
        runs = [{"requests_per_s": rate + more, "start_seconds": rate / 2} for more in (0, -3, 3)]
        report = measured(
            CASES["rand"], runs, targets=Targets(), notes=(), engine={}, earlier=report
        )
        assert details(report).endswith(f"start_seconds {rate / 2:.3g}")
    assert report is not None
    assert report.figures == {"requests_per_s": 63.0, "start_seconds": 31.5}
    assert len(report.runs) == 9
    assert [start["requests_per_s"] for start in report.starts] == [60.0, 66.0, 63.0]
    (row,) = report.rows
    assert row.spread_percent == pytest.approx(10.0)
    head, line = table([report], None).splitlines()
    assert head.split() == ["case", "ours", "unit", "runs", "starts"]
    assert line.split("  ")[-2:] == ["57 to 69", "60, 66, 63 (10.0%)"]


@pytest.mark.parametrize(("starts", "spread"), [([0.05], None), ([0.0, 0.05], None)])
def test_starts_without_a_spread(starts: list[float], spread: float | None) -> None:
    report = None
    for bubble in starts:
        run = {"requests_per_s": 60.0, "bubble_share": bubble}
        report = measured(
            CASES["rand"], [run], targets=Targets(), notes=(), engine={}, earlier=report
        )
    assert report is not None
    assert report.rows[1].spread_percent is spread


def test_a_failure_is_reported() -> None:
    report = failed(CASES["rand"], BenchError("nothing came"))
    assert "rand: FAILED: nothing came" in table([report], VLLM)
    assert details(report).endswith("FAILED: nothing came")


def test_without_targets_there_are_only_our_figures() -> None:
    runs = [{"output_tokens_per_s": value} for value in (230.0, 240.0, 236.0)]
    report = measured(CASES["one"], runs, targets=Targets(), notes=(), engine={})
    assert verdicts(report) == [""]
    assert [line.split() for line in table([report], None).splitlines()] == [
        ["case", "ours", "unit", "runs"],
        ["one", "236", "tok/s", "230", "to", "240"],
    ]


def test_a_picture_needs_targets(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("server.bench.report.read_targets", Targets)
    file = tmp_path / "out.png"
    assert cli.main(["bench", "offline", "--case", "one", "--plot", str(file)]) == 1
    assert "--plot compares with benchmarks/targets.toml" in capsys.readouterr().err
    assert not file.exists()


def test_milliseconds() -> None:
    assert milliseconds("x", [0.001, 0.002, 0.006]) == pytest.approx(
        {"x_mean_ms": 3.0, "x_p50_ms": 2.0, "x_p99_ms": float(np.percentile([1, 2, 6], 99))}
    )
    assert milliseconds("x", []) == {}


async def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    async with progress_shown("dec", "tokens", 4, lambda: 2, lambda: "a note"):
        await asyncio.sleep(1.2)
        line = screen.getvalue()
    assert line.startswith("\rdec:  50%|")
    assert re.search(r"\| 2/4 \[00:01<00:01, .* tokens/s, a note\]", line)
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_the_machine() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert {"Python", "torch", "msgspec"} <= set(machine.versions)
    assert machine.commit in machine.header()


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra `bench`)")
    cases = [report_of("one", {"output_tokens_per_s": 240.0}), report_of("http-gen-16", PACED)]
    plot(Report("penstock bench", this_machine(), VLLM, cases), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BenchError, match=r"pip install 'penstock\[bench\]'"):
        drawing_library()
