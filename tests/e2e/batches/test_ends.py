"""How a job from Python ends, if not by itself."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from server.batches.batch_llm import BatchLLM
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


def test_a_model_that_is_not_there_leaves_no_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match=r"config\.json"), BatchLLM(str(tmp_path)):
        pass
    wait_until(lambda: threading.active_count() == threads)
