"""How many cores there are, with and without a container's limit, and which are a copy's."""

import os
from pathlib import Path

import pytest

from server.models.devices import available_cores, cores_of_copy


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "150000\n"}, 8),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("lists", "copies", "cores"),
    [
        ([], 2, [(), ()]),
        (["0-63"], 2, [(), ()]),
        (["0-3", "4-7"], 1, [()]),
        (["0-3", "4-7"], 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (["0-1,4-5\n", "2-3,6-7\n"], 4, [(0, 1, 4, 5)] * 2 + [(2, 3, 6, 7)] * 2),
        (["0-1", "2-3", "4-5", "6,7,9"], 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (["0-2", "3-4", "5-7"], 2, [(0, 1, 2), (3, 4, 5, 6, 7)]),
        (["0-7", "", "8-15"], 2, [(), ()]),
    ],
)
def test_copies_are_bound_to_sockets(
    tmp_path: Path, lists: list[str], copies: int, cores: list[tuple[int, ...]]
) -> None:
    """In the order of their numbers. Memory may have a node without cores, and some may be not
    ours."""
    for number, text in enumerate(lists):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(text)
    assert [cores_of_copy(copy, copies, tmp_path) for copy in range(copies)] == cores
