"""Processes that stand still: each is noticed, named, and ends a daemon that starts none again."""

import os
import signal
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Asking, Daemon, is_alive, metric
from tests.patience import PATIENCE, wait_until

LONG = {"prompt": "The function", "max_tokens": 400, "ignore_eos": True}
DEMO = str(demo_models()[GENERATOR_NAME])
PARTS = (f"worker 0 of {GENERATOR_NAME}", f"engine of {GENERATOR_NAME}", "api process 0")
NAMED = ("--served-model-name", GENERATOR_NAME, "--max-restarts", "0")


@contextmanager
def several(arguments: Iterable[tuple[str, ...]]) -> Generator[list[Daemon]]:
    """Daemons that start at the same time."""
    daemons = [Daemon(DEMO, *NAMED, *own) for own in arguments]
    try:
        yield [daemon.wait_ready() for daemon in daemons]
    finally:
        for daemon in daemons:
            daemon.end()


def pid_of(daemon: Daemon, part: str) -> int:
    (api,) = daemon.children()["server.daemon.api_process"]
    return {"worker": daemon.part("0.worker-0"), "engine": daemon.part("0.engine"), "api": api}[
        part.split(maxsplit=1)[0]
    ]


def stopped(daemons: list[Daemon]) -> float:
    """Freeze another part of each; the time."""
    for daemon, part in zip(daemons, PARTS, strict=True):
        os.kill(pid_of(daemon, part), signal.SIGSTOP)
    return time.monotonic()


def assert_named(daemon: Daemon, part: str) -> None:
    assert any(part in line and "still" in line for line in daemon.log), daemon.log


@pytest.mark.long
def test_an_idle_part_that_is_frozen_ends_the_daemon() -> None:
    """A worker and an engine within 10 s whatever --stall-timeout is; an API process after it."""
    with several([(), (), ("--stall-timeout", "5")]) as daemons:
        frozen = stopped(daemons)
        for daemon, part in zip(daemons, PARTS, strict=True):
            assert daemon.exit_code() == 1
            assert_named(daemon, part)
            assert not daemon.children()
        assert time.monotonic() - frozen < 50  # 10 to notice and 3 to end, on a busy machine


def test_a_part_that_is_frozen_at_work_ends_the_daemon() -> None:
    with several([("--stall-timeout", "5")] * 3) as daemons:
        asked = [Asking(daemon, "/v1/completions", LONG) for daemon in daemons]
        for daemon in daemons:
            url = daemon.url
            wait_until(lambda url=url: metric(url, "penstock_engine_running_rows") == 1)
        stopped(daemons)
        worker, engine, api = (asking.answer() for asking in asked)
        assert worker is not None
        assert engine is not None
        assert (worker.status_code, engine.status_code) == (500, 500)
        assert f"{PARTS[0]} stands still: step " in worker.json()["error"]["message"]
        assert engine.json()["error"]["code"] == "engine_dead"
        assert api is None
        for daemon, part in zip(daemons, PARTS, strict=True):
            assert daemon.exit_code() == 1
            assert_named(daemon, part)


@pytest.mark.long
def test_what_is_no_hang() -> None:
    """While a step is in flight a debugger may stop its worker for longer than an idle one may be
    silent; with a stall timeout of 0 no process is watched."""
    with several([(), ("--stall-timeout", "0")]) as (at_work, unwatched):
        asked = Asking(at_work, "/v1/completions", LONG)
        wait_until(lambda: metric(at_work.url, "penstock_engine_running_rows") == 1)
        parts = [pid_of(unwatched, part) for part in PARTS]
        frozen = [pid_of(at_work, PARTS[0]), *parts]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(12)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        body = {"prompt": "The function", "max_tokens": 4}
        url = f"{unwatched.url}/v1/completions"
        assert httpx.post(url, json=body, timeout=PATIENCE).status_code == 200
        answer = asked.answer()
        assert answer is not None
        assert answer.status_code == 200
        # Heartbeats that were never read are no reason to stay when the supervisor is gone.
        unwatched.process.kill()
        wait_until(lambda: not any(map(is_alive, parts)))
