"""What the measurements of batches write and draw."""

from pathlib import Path

import pytest

from benchmarks.batches.batch_file import write_file
from benchmarks.batches.beside import lines, online_figures
from server.batches.answering import Line
from server.batches.file_job import LineRules, read_line
from server.bench.workloads import GenerationCase

CASE = GenerationCase(name="b", count=1, members=2, prefix=3, own=2, outputs=4)


def test_a_case_becomes_requests(tmp_path: Path) -> None:
    ids = [b"\1\0\0\0\2\0\0\0", b"\3\0\0\0"]
    write_file(tmp_path / "in", CASE, ids)
    rules = LineRules(max_line_bytes=1000)
    read = [read_line(0, 1, text, rules) for text in (tmp_path / "in").read_bytes().splitlines()]
    bodies = [line.body for line in read if isinstance(line, Line)]
    assert [b'"prompt":[1,2]' in bodies[0], b'"prompt":[3]' in bodies[1]] == [True, True]
    assert all(b'"max_tokens":4' in body for body in bodies)


def figures() -> dict:
    times = [(0.0, 0.05, 0.05 + 127 * 0.01), (1.0, 1.07, 1.07 + 127 * 0.02)]
    return {
        "idle": online_figures(times[:1]),
        "beside": online_figures(times),
        "batch": {"alone_requests_per_s": 10.0, "beside_requests_per_s": 8.0},
        "online_rate": 4.0,
        "rows_by_second": [8.0, 8.0],
        "requests": [{"at": 0.1, "ttft_ms": 50.0, "tpot_ms": 10.0}],
    }


def test_figures_stand_beside_their_goals() -> None:
    assert list(lines(figures())) == [
        "ttft_p50_ms: idle 50.0, beside 60.0 (goal 90.0)",
        "ttft_p99_ms: idle 50.0, beside 69.8 (goal 170.0)",
        "tpot_p50_ms: idle 10.0, beside 15.0 (goal 30)",
        "batch: alone 10.0 req/s, beside 8.0 (0.80; goal 0.8, less 512 online tokens a second)",
    ]


def test_they_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra `bench`)")
    from benchmarks.batches.plot_beside import draw

    draw(figures(), tmp_path / "beside.svg")
    assert "TTFT" in (tmp_path / "beside.svg").read_text()
