"""A picture of requests a second by degree has a line for each way in which they were measured."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra `bench`)")

from benchmarks import plot_degrees
from benchmarks.plot_degrees import read_line


def report(file: Path, *flags: str, shared: bool = True, **rates: float) -> Path:
    """A file as `penstock bench offline --json` writes it, as far as it is read."""
    cases: list[dict[str, Any]] = [
        {
            "case": name.replace("_", "-"),
            "figures": {"requests_per_s": rate},
            "runs": [{}],
            "engine": {"disable_cascade_attn": not shared},
        }
        for name, rate in rates.items()
    ]
    machine = {"gpus": ["NVIDIA H200"], "cpu": "EPYC", "commit": "abc", "date": "2026-11-23"}
    command = " ".join(["penstock", "bench", "offline", *flags])
    file.write_text(json.dumps({"command": command, "machine": machine, "cases": cases}))
    return file


def test_a_line_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = report(tmp_path / "a.json", degree_16=80.0, degree_1=20.0, b16=81.0)
    alone = report(tmp_path / "b.json", "--no-prefix-caching", shared=False, degree_16=40.0)
    assert read_line(shared).rates == {1: 20.0, 16: 80.0}
    assert read_line(shared).label == "shared by token"
    pictures = tmp_path / "degrees.svg", tmp_path / "again.svg"
    for picture in pictures:
        monkeypatch.setattr(sys, "argv", ["plot", str(shared), str(alone), "-o", str(picture)])
        plot_degrees.main()
    drawn, again = (picture.read_text() for picture in pictures)
    assert drawn == again
    for text in (
        "shared by token",
        "no prefix caching, no shared attention",
        "NVIDIA H200, commit abc",
    ):
        assert f">{text}" in drawn


def test_a_file_without_degrees(tmp_path: Path) -> None:
    other = report(tmp_path / "a.json", "--no-prefix-caching", b16=80.0)
    with pytest.raises(SystemExit, match=f"^{other}: no case degree-N$"):
        read_line(other)
