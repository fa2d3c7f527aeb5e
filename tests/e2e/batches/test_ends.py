"""How a job from Python ends, if not by itself."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from server.batches.batch_llm import BatchLLM, Job
from server.batches.results import Generated, JobStoppedError
from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import children_of, is_alive
from tests.patience import PATIENCE, wait_until

FOLDER = str(demo_models()[GENERATOR_NAME])
JOB = f"""
from server.batches import BatchLLM
with BatchLLM({FOLDER!r}, threads=1) as llm:
    print("ready", flush=True)
    llm.generate(["Water"] * 2000, max_tokens=900, ignore_eos=True)
"""


def test_ctrl_c_leaves_no_process() -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        children = [pid for pids in children_of(script.pid).values() for pid in pids]
        assert len(children) == 2, "an engine and its worker"
        script.send_signal(signal.SIGINT)
        _, said = script.communicate(timeout=PATIENCE)
    finally:
        script.kill()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not any(map(is_alive, children))


@pytest.mark.parametrize("part", ["engine_core", pytest.param("workers", marks=pytest.mark.long)])
def test_an_engine_that_dies_stops_the_job_with_what_is_done(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, has_a_result, put = children_of(os.getpid()), threading.Event(), Job.put

    def noticed(job: Job[Any], index: int, result: Any) -> None:
        put(job, index, result)
        has_a_result.set()

    monkeypatch.setattr(Job, "put", noticed)
    with BatchLLM(FOLDER, threads=1, progress=False) as llm:
        (pid,) = set(children_of(os.getpid())[part]) - set(before.get(part, []))
        # More than run at a time, and of one length: those with the shortest answers begin last.
        each = [{"max_tokens": 60}] * 301
        killing = threading.Thread(
            target=lambda: has_a_result.wait(PATIENCE) and os.kill(pid, signal.SIGKILL)
        )
        killing.start()
        with pytest.raises(JobStoppedError, match="engine") as raised:
            llm.generate(["Water"] * 301, each, ignore_eos=True)
        results = raised.value.results
        killing.join()
        assert len(results) == 301
        assert isinstance(results[0], Generated)
        assert results[-1] is None
        with pytest.raises(JobStoppedError):
            llm.generate(["Water"])


def test_a_model_that_is_not_there_leaves_no_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match=r"config\.json"), BatchLLM(str(tmp_path)):
        pass
    wait_until(lambda: threading.active_count() == threads)
