"""Answers with many log-probabilities: encoded in parts, one after the other, and bounded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.settings.settings import Limits
from tests.patience import wait_until
from tests.server.api.test_ops import metric
from tests.server.chat_client import HELLO, say_little
from tests.server.chat_templates import CHATML, chat_deployment
from tests.server.conftest import Deployment

COMPLETION: dict[str, Any] = {"prompt": "Hello", "logprobs": 5, "max_tokens": 700}
CHAT = {"messages": HELLO, "logprobs": True, "top_logprobs": 5, "max_tokens": 700}
PATHS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
CHOICES = 16
"""Of 700 tokens with 5 alternatives each: more numbers than are encoded at once; twice as many are
more than are held beside another answer."""


@pytest.fixture(scope="module")
def open_deployment(tokenizer: Tokenizer) -> Iterator[Deployment]:
    limits = Limits(max_unread_size=1 << 20)
    with chat_deployment(tokenizer, {"writer": CHATML}, limits=limits) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment: Deployment) -> Deployment:
    return say_little(open_deployment)


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_in_parts_is_what_it_would_be_whole(deployment: Deployment, say, path: str):
    tokens = len(say("naïve \0 words, " * 100)) + 1
    assert tokens * 6 < 1 << 14 < tokens * 6 * CHOICES
    whole = deployment.post(path, PATHS[path]).json()
    parted = deployment.post(path, {**PATHS[path], "n": CHOICES}).json()
    (choice,) = whole.pop("choices")
    assert parted.pop("choices") == [{**choice, "index": index} for index in range(CHOICES)]
    assert parted.keys() == whole.keys()
    assert parted["usage"]["completion_tokens"] == CHOICES * tokens


@pytest.mark.parametrize(
    "path", ["/v1/completions", pytest.param("/v1/chat/completions", marks=pytest.mark.long)]
)
def test_too_many_are_refused_and_others_are_served(deployment: Deployment, path: str) -> None:
    deployment.engines["writer"].script.tokens = [7] * 2000
    deployment.engines["writer"].script.step_seconds = 0.001
    large = {**PATHS[path], "ignore_eos": True, "n": 2 * CHOICES}
    small = {**large, "max_tokens": 20, "n": 1}
    with ThreadPoolExecutor(2) as pool:
        # Refused long before the engine would be done with it.
        refused = pool.submit(deployment.post, path, {**large, "max_tokens": 2000})
        while not refused.done():
            assert deployment.post(path, small).status_code == 200
    error = refused.result().json()["error"]
    assert refused.result().status_code == 429
    assert error["code"] == "overloaded"
    assert "of them for log-probabilities" in error["message"]
    # Nothing of a stream is kept, and nothing without log-probabilities counts.
    streamed = deployment.post(path, {**large, "stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert "error" not in streamed.text
    plain = {name: value for name, value in large.items() if "logprobs" not in name}
    assert deployment.post(path, plain).status_code == 200
    assert deployment.engines["writer"].aborted


def test_a_stream_that_holds_the_most_ends_with_the_refusal(deployment: Deployment) -> None:
    deployment.engines["writer"].script.step_seconds = 0.2
    prompt = {"prompt": [7] * 1200, "echo": True, "logprobs": 5, "max_tokens": 400}
    scored = {"prompt": "a", "logprobs": 0, "max_tokens": 10, "ignore_eos": True}
    body = {**prompt, "ignore_eos": True, "stream": True}
    streaming = deployment.http.stream("POST", "/v1/completions", json=body)
    with ThreadPoolExecutor(64) as pool, streaming as streamed:
        lines = filter(None, streamed.iter_lines())
        # Only then are its scores held, and the next events ahead.
        events = [next(lines)]
        others = [pool.submit(deployment.post, "/v1/completions", scored) for _ in range(60)]
        assert {other.result().status_code for other in others} == {200}
        events += lines
    assert events[0].startswith('data: {"id":"cmpl-')
    assert '"code":"overloaded"' in events[-1]
    wait_until(lambda: metric(deployment, "penstock_in_flight", what="rows") == 0)
