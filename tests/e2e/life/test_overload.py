"""A real daemon that is asked for more than it can do."""

import asyncio
import math
import re
import time

import httpx

from server.demo import EMBEDDER_NAME, demo_models
from tests.e2e.daemon import metric, running

PASSAGE = "The gate opens, water falls, and the turbine turns; the river goes on below it. " * 6
WAIT = re.compile(r"would wait about ([\d.]+) s, more than the 1 s that this server allows")
CLIENTS, SECONDS, PAUSE_S = 300, 3.0, 0.5
SOON_S = 30.0
"""What begins within 1.2 s is answered much sooner, but for a machine that does other things."""


async def crowd(url: str) -> list[tuple[float, httpx.Response]]:
    """Clients that come again as soon as they have an answer, or a moment after they were sent
    away: seconds and answers."""
    answers: list[tuple[float, httpx.Response]] = []
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:

        async def ask() -> int:
            started = time.monotonic()
            answer = await http.post("/v1/embeddings", json={"input": PASSAGE})
            answers.append((time.monotonic() - started, answer))
            return answer.status_code

        async def client() -> None:
            while time.monotonic() < until:
                if await ask() == 429:
                    await asyncio.sleep(PAUSE_S)

        # So many at first that some wait: then the engine knows its rate.
        await asyncio.gather(*(ask() for _ in range(60)))
        answers.clear()
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers


def test_what_would_wait_too_long_is_told_so_at_once() -> None:
    model = str(demo_models()[EMBEDDER_NAME])
    with running(model, "--threads", "1", "--max-queue-seconds", "1") as daemon:
        answers = asyncio.run(crowd(daemon.url))
        counted = metric(daemon.url, "penstock_http_requests_total", status="429")
    taken = [seconds for seconds, answer in answers if answer.status_code == 200]
    refused = [answer for _, answer in answers if answer.status_code == 429]
    assert len(taken) + len(refused) == len(answers)
    assert refused
    assert taken
    assert max(taken) < SOON_S
    for answer in refused:
        error = answer.json()["error"]
        assert error["code"] == "overloaded"
        wait = WAIT.search(error["message"])
        assert wait is not None, error
        assert float(wait[1]) >= 1
        assert abs(int(answer.headers["retry-after"]) - math.ceil(float(wait[1]))) <= 1
    assert counted == len(refused)
