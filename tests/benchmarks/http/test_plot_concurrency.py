"""A picture of a daemon's throughput and latency by how many requests come at once."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra `bench`)")

from benchmarks.http import plot_concurrency

FIGURES = {
    "1 at once: requests": 50.0,
    "8 at once: requests": 90.0,
    "1 at once: latency, p99": 21.0,
    "8 at once: latency, p99": 95.0,
}


def results(file: Path, case: str) -> Path:
    """A file as `python -m benchmarks --json` writes it, as far as it is read."""
    figures = [{"name": name, "value": value} for name, value in FIGURES.items()]
    machine = {"cpu": "EPYC", "commit": "abc", "date": "2026-11-28"}
    file.write_text(json.dumps({"machine": machine, "cases": [{"case": case, "figures": figures}]}))
    return file


def test_a_line_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, picture = results(tmp_path / "a.json", "concurrency"), tmp_path / "a.svg"
    assert plot_concurrency.read_lines(file) == {
        "requests": {1: 50.0, 8: 90.0},
        "latency, p99": {1: 21.0, 8: 95.0},
    }
    monkeypatch.setattr(sys, "argv", ["plot", str(file), "-o", str(picture)])
    plot_concurrency.main()
    drawn = picture.read_text()
    for text in ("requests at once", "latency, p99", "EPYC, commit abc"):
        assert f">{text}" in drawn


def test_a_file_without_concurrency(tmp_path: Path) -> None:
    other = results(tmp_path / "a.json", "overload")
    with pytest.raises(SystemExit, match=f"^{other}: no figures of concurrency$"):
        plot_concurrency.read_lines(other)
