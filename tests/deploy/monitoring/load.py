"""Requests of every kind, so that every metric of a daemon with the demo models has moved."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx

from tests.patience import wait_until

GENERATOR, EMBEDDER = "penstock-demo", "all-MiniLM-L6-v2"
_PROMPT = "The file is read line by line, and every line is written to the output. " * 6
_TEXT = {"model": GENERATOR, "prompt": _PROMPT, "max_tokens": 24, "ignore_eos": True}
# It takes seconds: rows that run are seen only by a heartbeat and the scrape after it.
_LONG_TEXT = _TEXT | {"max_tokens": 600}
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_TURNS = [{"role": "user", "content": "What is a class?"}]

# What is asked for, and the status that it gets.
_REQUESTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/v1/completions", _TEXT, 200),
    ("/v1/completions", _TEXT | _STREAMED, 200),
    ("/v1/chat/completions", {"model": GENERATOR, "messages": _TURNS, "max_tokens": 8}, 200),
    ("/v1/embeddings", {"model": EMBEDDER, "input": ["one", "two", "three"]}, 200),
    ("/v1/rerank", {"model": EMBEDDER, "query": "a file", "documents": ["line", "class"]}, 200),
    ("/tokenize", {"model": GENERATOR, "prompt": _PROMPT}, 200),
    ("/v1/completions", _TEXT | {"model": "nobody"}, 404),
    ("/v1/completions", _TEXT | {"max_tokens": 100_000}, 400),
)


def load(url: str, rounds: int) -> None:
    """Ask for everything so many times, then for more texts at once than the daemon takes."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(rounds):
            for path, body, status in _REQUESTS:
                answer = client.post(path, json=body)
                assert answer.status_code == status, f"{path}: {answer.text}"
    assert 429 in set(_at_once(url, 24)), "the daemon refused nothing"


def refused_while_loading(url: str) -> None:
    """Ask for a text until the daemon answers that its model is not ready."""
    wait_until(lambda: _status(url) == 503)


def _status(url: str) -> int | None:
    with suppress(httpx.TransportError):
        return httpx.post(f"{url}/v1/completions", json=_TEXT).status_code
    return None


def _at_once(url: str, count: int) -> Iterator[int]:
    def ask(_: int) -> int:
        return httpx.post(f"{url}/v1/completions", json=_LONG_TEXT, timeout=60).status_code

    with ThreadPoolExecutor(count) as threads:
        yield from threads.map(ask, range(count))
