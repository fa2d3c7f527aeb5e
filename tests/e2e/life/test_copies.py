"""Two copies of an engine in one daemon, one of which is lost under streams."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, metric, running
from tests.patience import PATIENCE, wait_until

BODY = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
SHORT = BODY | {"max_tokens": 5}


class Stream:
    """A completion as it comes: its text, and how it has ended."""

    def __init__(self, daemon: Daemon) -> None:
        self.text, self.end = "", ""
        self._thread = threading.Thread(target=self._read, args=(daemon,))
        self._thread.start()

    def _read(self, daemon: Daemon) -> None:
        url, body = f"{daemon.url}/v1/completions", BODY | {"stream": True}
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
            for line in filter(None, answer.iter_lines()):
                if line == "data: [DONE]":
                    self.end = "done"
                    continue
                event: Any = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.end = event["error"]["code"]
                else:
                    self.text += event["choices"][0]["text"]

    def join(self) -> str:
        self._thread.join(PATIENCE)
        return self.end


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    words = ("--served-model-name", "m", "--threads", "1", "--state-dir", "none")
    folder = str(demo_models()[GENERATOR_NAME])
    with running(folder, *words, "--data-parallel-size", "2") as daemon:
        yield daemon


def states(daemon: Daemon) -> list[str]:
    (model,) = httpx.get(f"{daemon.url}/status").json()["models"]
    return [engine["state"] for engine in model["engines"]]


def is_ready(daemon: Daemon) -> bool:
    return httpx.get(f"{daemon.url}/health/ready").status_code == 200


def four_streams(daemon: Daemon) -> list[Stream]:
    """Those that have begun: two on each copy, which had nothing to do."""
    streams = [Stream(daemon) for _ in range(4)]
    wait_until(lambda: all(stream.text for stream in streams))
    return streams


def test_a_lost_stage_is_a_pause_for_one_copy_and_a_lost_core_fails_its_requests_alone(
    daemon: Daemon,
) -> None:
    texts = {daemon.ask("/v1/completions", **BODY)["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1, "both say the same"
    assert [metric(daemon.url, "penstock_engine_steps_total", copy=copy) > 0 for copy in "01"]

    streams = four_streams(daemon)
    os.kill(daemon.part("0-1.worker-0"), signal.SIGKILL)
    wait_until(lambda: "restarting" in states(daemon))
    assert is_ready(daemon)
    assert daemon.ask("/v1/completions", **SHORT)["choices"][0]["finish_reason"] == "length"
    assert [stream.join() for stream in streams] == ["done"] * 4
    assert {stream.text for stream in streams} == texts
    wait_until(lambda: states(daemon) == ["ready", "ready"])
    assert metric(daemon.url, "penstock_engine_restarts_total", copy="1") == 1
    assert metric(daemon.url, "penstock_engine_restarts_total", copy="0") == 0

    streams = four_streams(daemon)
    os.kill(daemon.part("0.engine"), signal.SIGKILL)
    wait_until(lambda: states(daemon) == ["loading", "ready"])
    assert is_ready(daemon)
    for _ in range(3):
        assert daemon.ask("/v1/completions", **SHORT)["choices"][0]["finish_reason"] == "length"
    ends = [stream.join() for stream in streams]
    assert sorted(ends) == ["done", "done", "engine_dead", "engine_dead"]
    assert {s.text for s, end in zip(streams, ends, strict=True) if end == "done"} == texts
    wait_until(lambda: states(daemon) == ["ready", "ready"])
    said = [line for line in daemon.log if " WARNING " in line and "starting" in line]
    assert "starting all stages of copy 1 of m again" in said[0]
    assert "the engine of copy 0 of m was killed by SIGKILL; starting" in said[1]
