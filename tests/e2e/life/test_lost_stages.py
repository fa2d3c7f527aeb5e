"""Stages of pipelines that are killed or frozen, at random moments of a life under traffic, and not
started again (test_restarts.py: where they are)."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, is_alive, metric
from tests.patience import PATIENCE, wait_until

STALL = 8.0
LATE = {signal.SIGKILL: 10.0, signal.SIGSTOP: STALL + 10.0}
"""Seconds until what is in flight has failed."""
GONE = {signal.SIGKILL: 20.0, signal.SIGSTOP: STALL + 20.0}
"""Seconds until every process has ended."""

COMPLETION = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True}
EMBEDDING = {"input": [f"Sentence number {n} is longer than others" for n in range(400)]}
"""Takes so long that some are always in flight."""
TRAFFIC = {
    GENERATOR_NAME: [
        ("/v1/completions", COMPLETION | {"stream": True}),
        ("/v1/completions", COMPLETION | {"stream": True, "max_tokens": 20}),
        ("/v1/completions", COMPLETION | {"max_tokens": 60}),
    ],
    EMBEDDER_NAME: [("/v1/embeddings", EMBEDDING)] * 3,
}
MORE_LOSSES = [
    (1, signal.SIGSTOP, EMBEDDER_NAME), (4, signal.SIGKILL, GENERATOR_NAME),
    (2, signal.SIGSTOP, GENERATOR_NAME),
    (3, signal.SIGKILL, GENERATOR_NAME), (3, signal.SIGSTOP, EMBEDDER_NAME),
    (4, signal.SIGSTOP, GENERATOR_NAME), (1, signal.SIGKILL, GENERATOR_NAME),
]  # fmt: skip


@dataclass
class Answer:
    """What one request got: `status` is None where the connection broke."""

    began: float
    ended: float = 0.0
    status: int | None = None
    lines: list[str] = field(default_factory=list)

    def errors(self) -> list[str]:
        """The codes and messages of all errors in it."""
        bodies = [line.removeprefix("data: ") for line in self.lines if line != "data: [DONE]"]
        found = [json.loads(body).get("error") for body in bodies]
        return [f"{error['code']}: {error['message']}" for error in found if error is not None]

    def check_ended_once(self) -> None:
        """One body, or events of which the last alone ends the stream."""
        if self.lines and self.lines[0].startswith("data: "):
            assert (self.lines[-1] == "data: [DONE]") != bool(self.errors())
            assert len(self.errors()) <= 1
            assert "data: [DONE]" not in self.lines[:-1]
        elif self.status is not None:
            assert (self.status == 200) == (not self.errors())


class Traffic:
    """Clients that ask again and again, one a kind of request, until nobody listens."""

    def __init__(self, daemon: Daemon, model: str) -> None:
        self.answers: list[Answer] = []
        self._url = daemon.url
        self._clients = [
            threading.Thread(target=self._ask, args=request) for request in TRAFFIC[model]
        ]
        for client in self._clients:
            client.start()

    def join(self) -> None:
        for client in self._clients:
            client.join(PATIENCE)
            assert not client.is_alive()

    def _ask(self, path: str, body: dict[str, object]) -> None:
        while True:
            answer = Answer(time.monotonic())
            try:
                with httpx.stream("POST", self._url + path, json=body, timeout=60) as response:
                    answer.lines = list(filter(None, response.iter_lines()))
                    answer.status = response.status_code
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                pass
            answer.ended = time.monotonic()
            self.answers.append(answer)


@contextmanager
def starting(model: str, stages: int) -> Generator[Daemon]:
    folder, words = str(demo_models()[model]), ("--threads", "1", "--stall-timeout", f"{STALL:g}")
    words += ("--max-restarts", "0")
    daemon = Daemon(folder, "--served-model-name", "m", "--pipeline-stages", str(stages), *words)
    try:
        yield daemon
    finally:
        daemon.end()


@pytest.mark.parametrize(
    ("stages", "number", "model"),
    [
        (2, signal.SIGKILL, EMBEDDER_NAME),
        *(pytest.param(*loss, marks=pytest.mark.long) for loss in MORE_LOSSES),
    ],
)
def test_what_is_in_flight_fails_at_once_and_everything_ends(
    stages: int, number: signal.Signals, model: str
) -> None:
    drawn = random.Random(f"{stages} {number}")
    with starting(model, stages) as daemon:
        daemon.wait_ready()
        processes, victim = [daemon.pid, *daemon.all_children()], drawn.randrange(stages)
        traffic = Traffic(daemon, model)
        for seconds in (drawn.random(), 0.0):
            wait_until(lambda: metric(daemon.url, "penstock_in_flight", what="requests") >= 2)
            time.sleep(seconds)
        os.kill(daemon.part(f"0.worker-{victim}"), number)
        lost = time.monotonic()
        code = daemon.exit_code()
        wait_until(lambda: not any(map(is_alive, processes)))
        assert time.monotonic() - lost < GONE[number]
        traffic.join()
    assert code == 1
    how = "has gone" if number == signal.SIGKILL else "stands still: step "
    check_answers(traffic.answers, lost, LATE[number], f"worker {victim} of m {how}")


def check_answers(answers: list[Answer], lost: float, late: float, why: str) -> None:
    """Every request ends once and in time; what was in flight names the stage that was lost."""
    errors = [error for answer in answers for error in answer.errors()]
    failed = [error for error in errors if error.startswith("engine_dead: the engine stopped: ")]
    assert failed
    assert all(why in error for error in failed)
    for answer in answers:
        answer.check_ended_once()
        if answer.errors():
            assert lost < answer.ended < max(lost, answer.began) + late
        if answer.began < lost:
            # One that had not reached the daemon then gets 503.
            assert answer.status in (200, 500, 503)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_a_stage_that_is_killed_while_it_starts_ends_the_daemon_with_one_line(seed: int) -> None:
    drawn = random.Random(seed)
    victim = drawn.randrange(2)
    with starting(GENERATOR_NAME, 2) as daemon:
        wait_until(lambda: len(daemon.children().get("workers", [])) == 2)
        processes = [daemon.pid, *daemon.all_children()]
        time.sleep(drawn.uniform(0, 0.8))  # a start takes 1.6 s on a quiet machine
        os.kill(daemon.part(f"0.worker-{victim}"), signal.SIGKILL)
        killed = time.monotonic()
        assert daemon.exit_code() == 1
        assert time.monotonic() - killed < GONE[signal.SIGKILL]
        assert not any(map(is_alive, processes))
    said = f"penstock: error: the worker {victim} of m was killed by SIGKILL while starting\n"
    assert [line for line in daemon.log if " INFO " not in line] == [said]
