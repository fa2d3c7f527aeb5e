"""One client that asks for as much as it may, beside others who ask for a little."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, metric, running
from tests.patience import PATIENCE, wait_until

LARGE = {"prompt": ["a"] * 2048, "n": 8, "ignore_eos": True}
KEYS = {name: f"sk-{name}" for name in ("greedy", "honest", "friend")}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    file: Path = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("".join(f"name={name} {key}\n" for name, key in KEYS.items()))
    models = [str(demo_models()[name]) for name in (GENERATOR_NAME, EMBEDDER_NAME)]
    keys = ("--api-key-file", str(file), "--share-prefixes", "honest", "--share-prefixes", "friend")
    with running(*models, "--threads", "1", *keys) as daemon:
        yield daemon


def asked(daemon: Daemon, path: str, key: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[key]}"}
    return httpx.post(f"{daemon.url}{path}", json=body, headers=headers, timeout=PATIENCE)


def assert_honest_are_served(daemon: Daemon) -> None:
    for _ in range(3):
        short = asked(daemon, "/v1/completions", "honest", prompt="Hi", max_tokens=2)
        assert short.status_code == 200, short.text
        vector = asked(daemon, "/v1/embeddings", "honest", input="Hi")
        assert vector.status_code == 200, vector.text


def sent(daemon: Daemon, body: object) -> socket.socket:
    """A request of the greedy client, of whose answer nothing is read."""
    key = f"authorization: Bearer {KEYS['greedy']}"
    return daemon.send("/v1/completions", body, key, window=2048)


def in_flight(daemon: Daemon, what: str) -> float:
    return metric(daemon.url, "penstock_in_flight", what=what)


def test_requests_for_everything_leave_room_for_others(daemon: Daemon) -> None:
    with ExitStack() as greedy:
        for _ in range(6):
            greedy.enter_context(closing(sent(daemon, {**LARGE, "max_tokens": 1000})))
        wait_until(lambda: in_flight(daemon, "requests") == 4)
        assert_honest_are_served(daemon)
        refused = asked(daemon, "/v1/completions", "greedy", **LARGE, max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert "this API key" in refused.json()["error"]["message"]
    wait_until(lambda: in_flight(daemon, "rows") == 0)


def test_an_answer_that_nobody_reads_holds_nothing(daemon: Daemon) -> None:
    body = {**LARGE, "prompt": ["a"] * 512, "max_tokens": 1, "stream": True, "logprobs": 20}
    with closing(sent(daemon, body)):
        wait_until(lambda: in_flight(daemon, "rows") > 0)
        assert_honest_are_served(daemon)
        wait_until(lambda: in_flight(daemon, "rows") == 0)
        assert in_flight(daemon, "requests") == 1


def test_no_key_sees_what_another_has_asked(daemon: Daemon) -> None:
    secret = "The password of the safe is known to nobody else, so keep it safe. " * 8

    def cached(key: str, **fields: Any) -> int:
        answer = asked(daemon, "/v1/completions", key, prompt=secret, max_tokens=1, **fields)
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("honest") == 0
    assert cached("honest") > 0
    assert cached("greedy") == 0
    assert cached("friend") > 0, "the two are named in --share-prefixes"
    assert cached("friend", cache_salt="own") == 0
    used = metric(daemon.url, "penstock_key_prompt_tokens_total", key="greedy")
    assert used > 100


def test_log_probabilities_of_too_many_prompts_are_refused_before_they_are_computed(
    daemon: Daemon,
) -> None:
    """A small request for an enormous answer. Each choice repeats the scores."""

    def scored(prompts: int, **fields: Any) -> httpx.Response:
        prompt = [[9] * 500] * prompts
        return asked(daemon, "/v1/completions", "honest", prompt=prompt, max_tokens=0, **fields)

    for fields in ({"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}):
        error = scored(500, **fields).json()["error"]
        assert error["code"] == "too_large"
        assert "250000 prompt tokens x (20 + 1)" in error["message"]
    large = scored(4, prompt_logprobs=20, n=128)
    assert (large.status_code, large.json()["error"]["code"]) == (400, "too_large")
