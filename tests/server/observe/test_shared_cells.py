"""Families and their series, as Prometheus sees them; counts of several processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from server.observe.shared_cells import Family, SharedCells, place

MODELS = {"model": ("writer", "ranker")}


def samples(metric: Metric) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for s in metric.samples}


def test_a_value_is_in_the_bucket_whose_bound_it_does_not_pass() -> None:
    family = Family("histogram", "seconds", "Seconds.", MODELS, (0.1, 1))
    cells = SharedCells(place([family]), [], 0)
    ranker = family.distribution(cells.own, "ranker")
    for value in (0.05, 0.1, 0.5, 3.0):
        ranker.observe(value)
    shown = samples(family.metric(cells.sums()))
    assert shown["seconds_bucket", "ranker", "0.1"] == 2
    assert shown["seconds_bucket", "ranker", "1.0"] == 3
    assert shown["seconds_bucket", "ranker", "+Inf"] == shown["seconds_count", "ranker"] == 4
    assert shown["seconds_sum", "ranker"] == 3.65
    assert shown["seconds_count", "writer"] == 0


def test_a_large_family_is_shown_without_what_never_happened() -> None:
    family = Family("counter", "rows", "Rows.", MODELS, shows_zeros=False)
    cells = SharedCells(place([family]), [], 0)
    family.count(cells.own, "ranker").add(2)
    assert samples(family.metric(cells.sums())) == {("rows_total", "ranker"): 2}


COUNT = """
import os, sys
from pathlib import Path
from server.observe.shared_cells import SharedCells
cells = SharedCells(3, [Path(file) for file in sys.argv[1:]], 1)
cells.own[0], cells.own[2] = 5.0, 7.0
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{number}.counts" for number in range(3)]


def test_one_process_needs_no_file() -> None:
    cells = SharedCells(2, [], 0)
    cells.own[1] += 1.5
    assert cells.sums() == [0.0, 1.5]


def test_a_process_sums_up_those_that_have_begun(files: list[Path]) -> None:
    files[2].write_bytes(b"\0" * 8)  # it is not whole yet
    first = SharedCells(2, files, 0)
    first.own[0] = 1.0
    assert first.sums() == [1.0, 0.0]
    second = SharedCells(2, files, 1)
    second.own[0], second.own[1] = 2.0, 4.0
    assert first.sums() == second.sums() == [3.0, 4.0]
    second.own[1] += 1.0
    assert first.sums() == [3.0, 5.0]


def test_what_a_killed_process_counted_still_counts(files: list[Path]) -> None:
    own = SharedCells(3, files, 0)
    own.own[0] = 1.0
    command = [sys.executable, "-c", COUNT, *map(str, files)]
    assert subprocess.run(command, check=False).returncode == -9
    assert own.sums() == [6.0, 0.0, 7.0]


def test_a_process_goes_on_with_what_one_before_it_counted(files: list[Path]) -> None:
    SharedCells(3, files, 1).own[2] = 7.0
    next_one = SharedCells(3, files, 1)
    next_one.own[2] += 1.0
    assert next_one.sums() == SharedCells(3, files, 0).sums() == [0.0, 0.0, 8.0]
