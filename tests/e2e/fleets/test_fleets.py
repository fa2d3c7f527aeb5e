"""Routers in front of two daemons: what docs/fleets.md says that each can do."""

import signal
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.e2e.fleets.fleet import Fleet, fleet, frozen, unlike
from tests.e2e.fleets.routers import ROUTERS
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.long
each_router = pytest.mark.parametrize("name", ROUTERS)
PREFIXES = 8
CLIENTS = 4


@pytest.fixture(scope="module", params=ROUTERS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Fleet]:
    with fleet(ROUTERS[request.param], tmp_path_factory.mktemp("fleet")) as ready:
        yield ready


def test_requests_go_to_the_daemon_with_least_load(served: Fleet) -> None:
    long = served.begin(unlike(), max_tokens=900)
    busy = served.busy()
    before = served.answered()
    for _ in range(8):
        assert served.ask(unlike(), max_tokens=1).status_code == 200
    assert served.running()[busy] == 1
    after = served.answered()
    assert (after[busy] - before[busy], after[1 - busy] - before[1 - busy]) == (0, 8)
    assert long.result(PATIENCE).status_code == 200


def test_a_prefix_goes_where_its_blocks_are(served: Fleet) -> None:
    prefixes = [
        (unlike() + " a long text that several requests share, ") * 16 for _ in range(PREFIXES)
    ]
    before = served.answered()
    for first in [served.begin(f"{prefix} one", max_tokens=32) for prefix in prefixes]:
        assert cached(first.result(PATIENCE)) == 0
    assert all(new > old for new, old in zip(served.answered(), before, strict=True))
    for tail in ("two", "three"):
        for prefix in prefixes:
            assert cached(served.ask(f"{prefix} {tail}")) > 0.8


def cached(answer: httpx.Response) -> float:
    """The share of its prompt that the prefix cache had."""
    usage = answer.json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


@each_router
def test_no_request_fails_when_a_daemon_drains(name: str, tmp_path: Path) -> None:
    with fleet(ROUTERS[name], tmp_path) as served:
        until = time.monotonic() + PATIENCE

        def client(stream: bool) -> list[httpx.Response]:
            answers: list[httpx.Response] = []
            while time.monotonic() < until:
                answers.append(served.ask(unlike(), max_tokens=40, stream=stream))
            return answers

        clients = [served.threads.submit(client, bool(number % 2)) for number in range(CLIENTS)]
        wait_until(lambda: all(served.running()))
        leaving = served.daemons[0]
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.exit_code() == 0
        until = time.monotonic() + 3
        answers = [answer for each in clients for answer in each.result(PATIENCE)]
        assert {answer.status_code for answer in answers} == {200}
        assert all("length" in answer.text for answer in answers)


@each_router
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_has_not_begun_is_asked_of_the_other(name: str, stream: bool, tmp_path: Path) -> None:
    with fleet(ROUTERS[name], tmp_path) as served:
        for daemon in served.daemons:
            frozen(daemon, True)
        asked = served.begin(unlike(), stream=stream)
        busy = served.busy()
        served.daemons[busy].end()
        frozen(served.daemons[1 - busy], False)
        answer = asked.result(PATIENCE)
        assert answer.status_code == 200, answer.text
        assert "length" in answer.text
