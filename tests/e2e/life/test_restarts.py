"""Processes that are killed at random moments under mixed load: what their clients saw.

Texts in float32 are those of an undisturbed daemon. What a loss may cost is said in
docs/reliability.md.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import httpx
import pytest

from benchmarks.daemon.chaos import lose, unexpected, until_ready, until_updates
from benchmarks.daemon.mixed_load import MIXED, MixedLoad
from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Asking, Daemon, metric, running
from tests.e2e.life.test_life import open_stream
from tests.patience import PATIENCE, wait_until

LONG = {"prompt": "The function", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@contextmanager
def kept_running(stages: int, *words: str) -> Generator[Daemon]:
    """The demo models, in so many stages each, and two API processes."""
    own = ("--threads", "1", "--pipeline-stages", str(stages), "--api-workers", "2")
    with running(*own, "--state-dir", "none", "--max-queue-seconds", "0", *words) as daemon:
        yield daemon


def kill_again_and_again(
    daemon: Daemon, load: MixedLoad, kind: str, kills: int, drawn: random.Random
) -> None:
    """At random moments: now and then before clients have had any news since the last one."""
    for number in range(kills):
        lost = lose(daemon.pid, kind, drawn, signal.SIGKILL)
        if lost is not None and (number % 3 or drawn.random() < 0.5):
            time.sleep(0.3)
            until_ready(daemon.url, lost)
            until_updates(load, lost)
        time.sleep(drawn.uniform(0.1, 2.0))


def test_nothing_is_lost_repeated_or_different() -> None:
    with kept_running(2) as daemon:
        load, drawn = MixedLoad(daemon.url, MIXED[::2]), random.Random(4)
        load.start(12, seed=4)
        kill_again_and_again(daemon, load, "stage", 2, drawn)
        assert not unexpected(load, ["stage"]), load.wrong
        for kind in ("core", "api"):
            kill_again_and_again(daemon, load, kind, 1, drawn)
        load.stop()
        assert not unexpected(load, ["core", "api"]), load.wrong
        assert load.outcomes["same"]
        assert metric(daemon.url, "penstock_engine_up") == 2


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("kind", ["stage", "core", "api"])
def test_nor_after_fifty_losses(kind: str, stages: int) -> None:
    with kept_running(stages, "--max-restarts", "1000") as daemon:
        load = MixedLoad(daemon.url)
        load.start(64, seed=stages)
        kill_again_and_again(daemon, load, kind, 50, random.Random(f"{kind} {stages}"))
        load.stop()
        print(f"longest pause {load.longest_pause:.1f} s; {dict(load.outcomes)}")
        assert not unexpected(load, [kind]), load.wrong
        assert load.outcomes["same"] > 64


def test_a_stage_that_is_lost_is_a_pause_for_its_model_alone() -> None:
    """Readiness says so, liveness does not; a stage that stands still is killed."""
    with kept_running(1, "--stall-timeout", "5") as daemon:
        undisturbed = daemon.ask("/v1/completions", **LONG)["choices"][0]["text"]
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        asking = Asking(daemon, "/v1/completions", LONG)
        wait_until(lambda: metric(daemon.url, "penstock_engine_running_rows") == 2)
        os.kill(daemon.part("0.worker-0"), signal.SIGSTOP)
        late = {"input": "another model's"}
        wait_until(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 503)
        assert httpx.get(f"{daemon.url}/health/ready").json()["error"]["code"] == "not_ready"
        assert httpx.get(f"{daemon.url}/health/live").status_code == 200
        assert daemon.ask("/v1/embeddings", **late)["data"]
        (model, other) = httpx.get(f"{daemon.url}/status").json()["models"]
        assert (model["state"], other["state"]) == ("restarting", "ready")
        answer = asking.answer()
        assert answer is not None
        assert answer.json()["choices"][0]["text"] == undisturbed
        reader.join(PATIENCE)
        assert lines[-1] == "data: [DONE]"
        wait_until(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 200)
        loss = httpx.get(f"{daemon.url}/status").json()["models"][0]["engines"][0]["loss"]
        assert "worker 0 of penstock-demo stands still" in loss["reason"]
        assert loss["outage_seconds"] > 0
        restarts = "penstock_engine_restarts_total"
        assert metric(daemon.url, restarts, model=GENERATOR_NAME) == 1
        assert metric(daemon.url, restarts) == 1
    (said,) = [line for line in daemon.log if " WARNING " in line and "starting all" in line]
    assert "stands still: step" in said


def test_an_api_process_that_is_replaced_counts_on(tmp_path: Path) -> None:
    generator, keys = str(demo_models()[GENERATOR_NAME]), tmp_path / "keys"
    keys.write_text("name=someone secret-one\n")
    headers = {"authorization": "Bearer secret-one"}
    with running(generator, "--api-key-file", str(keys), "--state-dir", "none") as daemon:
        asked = {"prompt": "a", "max_tokens": 1}

        def ask() -> None:
            url = f"{daemon.url}/v1/completions"
            assert httpx.post(url, json=asked, headers=headers, timeout=60).status_code == 200

        def counted() -> float:
            return metric(daemon.url, "penstock_key_requests_total", key="someone")

        ask()
        wait_until(lambda: counted() == 1)
        keys.write_text("name=another secret-two\nname=someone secret-one\n")
        daemon.process.send_signal(signal.SIGHUP)
        (victim,) = daemon.children()["server.daemon.api_process"]
        engine = daemon.part("0.engine")
        os.kill(engine, signal.SIGSTOP)
        os.kill(victim, signal.SIGKILL)
        # The connection waits for the next one, until that knows the engine.
        Timer(2.0, os.kill, (engine, signal.SIGCONT)).start()
        ask()
        wait_until(lambda: counted() == 2)
        assert metric(daemon.url, "penstock_in_flight", what="requests") == 0


def test_weights_that_have_changed_meanwhile_end_the_daemon(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_models()[GENERATOR_NAME], tmp_path / "model"))
    weights = folder / "model.safetensors"
    with running(str(folder), "--state-dir", "none") as daemon:
        weights.write_bytes(weights.read_bytes())
        os.kill(daemon.part("0.worker-0"), signal.SIGKILL)
        assert daemon.exit_code() == 1
    said = f"penstock: error: {weights} has changed since the daemon's start; stopping\n"
    assert said in daemon.log


def test_losses_beyond_max_restarts_end_the_daemon() -> None:
    generator = str(demo_models()[GENERATOR_NAME])
    with running(generator, "--state-dir", "none", "--max-restarts", "1") as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        os.kill(daemon.part("0.worker-0"), signal.SIGKILL)
        restarts = "penstock_engine_restarts_total"
        wait_until(lambda: metric(daemon.url, restarts) == 1)
        wait_until(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 200)
        os.kill(daemon.part("0.worker-0"), signal.SIGKILL)
        reader.join(PATIENCE)
        error = json.loads(lines[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        assert "worker 0 of" in error["message"]
        assert daemon.exit_code() == 1
        assert not daemon.children()
