"""What is chosen by measuring: once for all on equal devices, and for the next start."""

import multiprocessing
import resource
import time
from pathlib import Path

import pytest
import torch

from workers.device import choices as choices_module
from workers.device.choices import Choices
from workers.device.timing import Stopwatch

CPU = torch.device("cpu")


class Measured:
    """A measurement of so much spread, whose results are numbered."""

    def __init__(self, spread: float = 0.0, *, failed: bool = False) -> None:
        self.count = 0
        self._spread, self._failed = spread, failed

    def __call__(self, watch: Stopwatch) -> list[int | None]:
        self.count += 1
        watch.spread, watch.failed = self._spread, self._failed
        return [self.count, None]


KIND = list[int | None]


def test_what_one_stage_measured_the_others_take(tmp_path: Path) -> None:
    measure = Measured()
    for _ in range(2):
        choices = Choices(f"{tmp_path}/new", "a start")
        for _ in range(2):
            assert choices.get("tiles", KIND, measure, CPU, 7, "silu") == [1, None]
    assert Choices(f"{tmp_path}/new", "another").get("tiles", KIND, measure, CPU, 7, "silu") == [
        1,
        None,
    ]


@pytest.mark.parametrize("change", ["what", "shape", "device", "code"])
def test_another_choice_shape_device_or_code_is_measured(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measured()
    Choices(str(tmp_path)).get("tiles", KIND, measure, CPU, 7)
    if change == "device":
        monkeypatch.setattr(choices_module, "_on", lambda _: "another GPU")
    if change == "code":
        monkeypatch.setattr(choices_module, "_digest", lambda: "another commit")
        choices_module._on.cache_clear()
    what, shape = "graphs" if change == "what" else "tiles", 8 if change == "shape" else 7
    assert Choices(str(tmp_path)).get(what, KIND, measure, CPU, shape) == [2, None]
    if change == "code":
        choices_module._on.cache_clear()


@pytest.mark.parametrize(("spread", "failed", "told"), [(0.12, False, 2), (0.0, True, 0)])
def test_what_was_disturbed_is_for_this_start_alone(
    tmp_path: Path, spread: float, failed: bool, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    measure = Measured(spread, failed=failed)

    def get(start: str) -> list[int | None]:
        return Choices(str(tmp_path), start).get("tiles", KIND, measure, CPU)

    assert [get("first"), get("first"), get("second")] == [[1, None], [1, None], [2, None]]
    line = "measuring the tiles was disturbed: equal runs differ by 12 %"
    assert [message.startswith(line) for message in caplog.messages] == [True] * told


@pytest.mark.parametrize("held", [b"", b'["tiles", "", [1', b'["tiles", "", "no list"]', b"\xff"])
def test_a_file_that_holds_nothing_whole_is_written_again(tmp_path: Path, held: bytes) -> None:
    measure = Measured()
    Choices(str(tmp_path)).get("tiles", KIND, measure, CPU)
    (file,) = tmp_path.iterdir()
    file.write_bytes(held)
    for _ in range(2):
        assert Choices(str(tmp_path)).get("tiles", KIND, measure, CPU) == [2, None]


def test_a_folder_that_cannot_be_written_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    choices, measure = Choices(f"{tmp_path}/file/choices"), Measured()
    for _ in range(2):
        assert choices.get("tiles", KIND, measure, CPU) == [1, None]
    (line,) = caplog.messages
    assert line.startswith("each start and stage measures the tiles for itself: ")


def test_what_a_full_disk_does_not_take_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))
    try:
        assert Choices(str(tmp_path)).get("tiles", KIND, Measured(), CPU) == [1, None]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    (line,) = caplog.messages
    assert line.startswith("each start and stage measures the tiles for itself: ")
    assert Choices(str(tmp_path)).get("tiles", KIND, Measured(), CPU) == [1, None]


def _slowly(watch: Stopwatch) -> float:
    time.sleep(0.3)
    return time.monotonic()


def _choose(folder: str) -> float:
    return Choices(folder).get("tiles", float, _slowly, CPU)


def test_while_one_process_measures_another_waits(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        chosen = processes.map(_choose, [str(tmp_path)] * 2, chunksize=1)
    assert chosen[0] == chosen[1]


def test_a_measurement_that_fails_leaves_the_next_one_free(tmp_path: Path) -> None:
    def fail(_: Stopwatch) -> list[int | None]:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        Choices(str(tmp_path)).get("tiles", KIND, fail, CPU)
    assert Choices(str(tmp_path)).get("tiles", KIND, Measured(), CPU) == [1, None]
