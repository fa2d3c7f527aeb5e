"""Clients that name the lowest priority, again and again, beside one that names none."""

import threading
import time

import httpx

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.patience import PATIENCE

LONG = {"prompt": [7] * 100, "max_tokens": 30, "ignore_eos": True, "priority": -9}
MAX_WAIT_S = 2.0
CLIENTS = 3  # one runs, so two wait at all times, and not for long


def flood(daemon: Daemon, stop: threading.Event) -> None:
    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        while not stop.is_set():
            http.post("/v1/completions", json=LONG)


def test_a_flood_of_the_lowest_priority_holds_others_up_no_longer_than_the_limit() -> None:
    arguments = ("--threads", "1", "--max-running", "1", "--priority-range=-9:0")
    wait = ("--max-priority-wait", str(MAX_WAIT_S))
    model = str(demo_models()[GENERATOR_NAME])
    with running(model, *arguments, *wait) as daemon:
        stop = threading.Event()
        crowd = [threading.Thread(target=flood, args=(daemon, stop)) for _ in range(CLIENTS)]
        for client in crowd:
            client.start()
        try:
            time.sleep(1)
            started = time.monotonic()
            answer = httpx.post(
                f"{daemon.url}/v1/completions",
                json={"prompt": "Hi", "max_tokens": 1},
                timeout=PATIENCE,
            )
            seconds = time.monotonic() - started
        finally:
            stop.set()
            for client in crowd:
                client.join()
    assert answer.status_code == 200
    assert seconds < 20 * MAX_WAIT_S
