"""Counts of several processes, one of which may have died."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.observe.families import SharedCells

COUNT = """
import os, sys
from pathlib import Path
from server.observe.families import SharedCells
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
    assert cells.sums() == cells.sums(alive=True) == [0.0, 1.5]


def test_a_process_sums_up_those_that_have_begun(files: list[Path]) -> None:
    first = SharedCells(2, files, 0)
    first.own[0] = 1.0
    assert first.sums() == [1.0, 0.0]
    second = SharedCells(2, files, 1)
    second.own[0], second.own[1] = 2.0, 4.0
    assert first.sums() == second.sums() == [3.0, 4.0]
    second.own[1] += 1.0
    assert first.sums() == [3.0, 5.0]


def test_a_file_that_is_not_whole_yet_is_left_out(files: list[Path]) -> None:
    files[2].write_bytes(b"\0" * 8)
    assert SharedCells(2, files, 0).sums() == [0.0, 0.0]


def test_what_a_killed_process_counted_still_counts_but_nothing_is_in_flight_there(
    files: list[Path],
) -> None:
    own = SharedCells(3, files, 0)
    own.own[0] = 1.0
    command = [sys.executable, "-c", COUNT, *map(str, files)]
    assert subprocess.run(command, check=False).returncode == -9
    assert own.sums() == [6.0, 0.0, 7.0]
    assert own.sums(alive=True) == [1.0, 0.0, 0.0]


def test_the_files_are_for_this_user_only(files: list[Path]) -> None:
    SharedCells(1, files, 0)
    assert files[0].stat().st_mode & 0o777 == 0o600
