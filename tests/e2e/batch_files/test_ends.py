"""How `penstock batch` ends, if not by itself, and how it goes on."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

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
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_stopped_job_leaves_what_is_done_in_order(number: signal.Signals, tmp_path: Path) -> None:
    source, output = write(tmp_path, 1500, max_tokens=20, ignore_eos=True)
    with BatchProcess(source, output, "--threads", "1") as process:
        process.wait_for_results(5)
        children = [pid for pids in children_of(process.pid).values() for pid in pids]
        code, _, complained = process.end(number)
    assert code == 128 + number
    assert "--resume goes on from here" in complained
    assert "Traceback" not in complained
    assert children
    assert not any(map(is_alive, children))
    done = [str(line["custom_id"]) for line in read_lines(output)]
    assert 5 <= len(done) < 1500
    assert done == sorted(done, key=lambda name: int(name[1:]))
    assert records(process.part) == len(done)


def test_an_engine_that_dies_stops_the_job_with_what_is_done(tmp_path: Path) -> None:
    source, output = write(tmp_path, 1500, max_tokens=20, ignore_eos=True)
    with BatchProcess(source, output, "--threads", "1") as process:
        process.wait_for_results(5)
        children = children_of(process.pid)
        os.kill(children["workers"][0], signal.SIGKILL)
        code, _, complained = process.end()
    assert code == 1
    assert "--resume goes on from here" in complained
    assert not any(map(is_alive, children["engine_core"]))
    assert len(read_lines(output)) == records(process.part)


def test_a_daemon_that_is_gone_is_named(tmp_path: Path) -> None:
    source, output = write(tmp_path, 3)
    code, _, complained = finished(source, output, "--url", "http://127.0.0.1:9")
    assert code == 1
    assert "http://127.0.0.1:9 does not answer" in complained


def test_what_cannot_work_fails_before_any_work(tmp_path: Path) -> None:
    source, output = write(tmp_path, 3)
    for given, says in (
        ((source, tmp_path / "none" / "out"), "cannot be written: No such file"),
        ((source, tmp_path), "is a folder"),
        ((source, source), "is the input"),
        ((tmp_path / "none", output), "cannot be read: No such file"),
    ):
        code, _, complained = finished(*given)
        assert (code, complained.count("\n")) == (1, 1)
        assert says in complained
    output.write_text("")
    code, _, complained = finished(source, output, "--resume")
    assert (code, "is complete: there is no" in complained) == (1, True)
    started_before = tmp_path / "out.jsonl.part"
    started_before.write_text("something\n")
    code, _, complained = finished(source, output)
    assert (code, "--resume" in complained) == (1, True)


def test_changed_input_is_refused(tmp_path: Path, demo: Daemon) -> None:
    source, output = write(tmp_path, LINES, max_tokens=16, ignore_eos=True)
    with BatchProcess(source, output, "--url", demo.url) as process:
        process.wait_for_results(1)
        process.end(signal.SIGKILL)
    source.write_text(source.read_text() + json.dumps(completion(LINES)) + "\n")
    code, _, complained = finished(source, output, "--url", demo.url, "--resume")
    assert code == 1
    assert "the input has changed: it has 801 lines" in complained


def test_a_file_without_lines_starts_no_engine(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl")
    code, said, complained = finished(source, tmp_path / "out.jsonl")
    assert (code, (tmp_path / "out.jsonl").read_text()) == (0, ""), complained
    assert said.startswith("0 requests (0 failed)")
