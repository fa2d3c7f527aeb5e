"""How `penstock batch` ends, if not by itself, and how it goes on."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.batch_files.batch_command import (
    BatchProcess,
    completion,
    finished,
    read_lines,
    records,
    write_lines,
)
from tests.e2e.daemon import Daemon, children_of, is_alive

LINES = 800
GENERATOR = str(demo_models()[GENERATOR_NAME])


def write(folder: Path, lines: int, **options: object) -> tuple[Path, Path]:
    source = folder / "in.jsonl"
    write_lines(source, *[completion(number, **options) for number in range(lines)])
    return source, folder / "out.jsonl"


@pytest.mark.long
def test_a_job_that_is_killed_again_and_again_loses_nothing(tmp_path: Path, demo: Daemon) -> None:
    source, output = write(tmp_path, LINES, max_tokens=16, ignore_eos=True)
    flags = ("--url", demo.url, "--resume")
    done = 0
    for _ in range(3):
        with BatchProcess(source, output, *flags) as process:
            process.wait_for_results(done + 1)
            time.sleep(random.uniform(0, 0.3))
            process.end(signal.SIGKILL)
        assert records(process.part) > done, "what was synced stays"
        done = records(process.part)
        with process.part.open("ab") as torn:
            torn.write(b'{"index":3,"digest":"01')
    assert 0 < done < LINES
    code, said, complained = finished(source, output, *flags)
    assert code == 0, complained
    assert f"{done} of them earlier" in said
    found = [line["custom_id"] for line in read_lines(output)]
    assert found == [f"c{number}" for number in range(LINES)]
    assert not process.part.exists()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), None]
)
def test_a_stopped_job_leaves_what_is_done_in_order(
    number: signal.Signals | None, tmp_path: Path
) -> None:
    """By a signal, or as its engine's worker dies."""
    source, output = write(tmp_path, 1500, max_tokens=20, ignore_eos=True)
    with BatchProcess(source, output, GENERATOR, "--threads", "1") as process:
        process.wait_for_results(5)
        children = children_of(process.pid)
        if number is None:
            os.kill(children["workers"][0], signal.SIGKILL)
        code, _, complained = process.end(number)
    assert code == (1 if number is None else 128 + number)
    assert "--resume goes on from here" in complained
    assert number is None or "Traceback" not in complained
    assert not any(map(is_alive, [*children["workers"], *children["engine_core"]]))
    done = [str(line["custom_id"]) for line in read_lines(output)]
    assert 5 <= len(done) < 1500
    assert done == sorted(done, key=lambda name: int(name[1:]))
    assert records(process.part) == len(done)
