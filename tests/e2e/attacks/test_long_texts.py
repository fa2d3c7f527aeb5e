"""Texts of megabytes, which no model here takes: refused at once, everywhere."""

import httpx
import pytest

from benchmarks.daemon.process_stats import cpu_seconds
from server.demo import EMBEDDER_NAME, GENERATOR_NAME
from tests.e2e.daemon import Daemon
from tests.patience import PATIENCE

LONG = "! " * 4_000_000
REQUESTS = {
    "/v1/completions": ({"model": GENERATOR_NAME, "prompt": LONG}, "prompt"),
    "/v1/embeddings": (
        {"model": EMBEDDER_NAME, "input": ["a", LONG], "truncate_prompt_tokens": 9},
        "input[1]",
    ),
    "/v1/rerank": ({"model": EMBEDDER_NAME, "query": "a", "documents": [LONG]}, "documents[0]"),
    "/v1/chat/completions": (
        {"model": GENERATOR_NAME, "messages": [{"role": "user", "content": LONG}]},
        "messages",
    ),
    "/tokenize": ({"model": EMBEDDER_NAME, "prompt": LONG}, "prompt"),
}
MANY = [{"role": "assistant"}] * 300_000


def cpu_of(demo: Daemon) -> float:
    """Seconds of all its processes, which take two to six to tokenize such a text."""
    return sum(map(cpu_seconds, demo.all_children()))


@pytest.mark.parametrize("path", REQUESTS)
def test_a_text_far_too_long_is_refused_by_name_before_it_is_tokenized(
    demo: Daemon, path: str
) -> None:
    body, field = REQUESTS[path]
    before = cpu_of(demo)
    answer = httpx.post(f"{demo.url}{path}", json=body, timeout=PATIENCE)
    assert cpu_of(demo) - before < 1.5
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_a_conversation_that_no_prompt_has_room_for_is_not_rendered(demo: Daemon) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        body = {"model": GENERATOR_NAME, "messages": MANY}
        answer = httpx.post(f"{demo.url}{path}", json=body, timeout=PATIENCE)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "messages"
        assert error["message"].startswith("messages: 2700000 characters; this model takes 1024")
