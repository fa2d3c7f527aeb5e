"""The attacks, each a function that goes on until its process is ended.

They are those that stopped a daemon of penstock for everybody else once, at their full size.
"""

import itertools
import json
import random
import socket
import string
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from benchmarks.attacks.fuzzed_requests import FuzzedRequests
from benchmarks.attacks.target import EMBEDDER, GENERATOR, Target

_LARGEST_BODY = 8 << 20

Attack = Callable[[Target], None]


def unread_stream(target: Target) -> None:
    """One stream of 2,048 x 8 rows of one token, which is never read."""
    body = {"prompt": ["a"] * 2048, "max_tokens": 1, "n": 8, "stream": True, "logprobs": 5}
    _hold([target.send("/v1/completions", _generated(body), receive_buffer=2048)])


def unread_answers(target: Target) -> None:
    """20 answers of about 16 MB, which are never read."""
    body = {"model": EMBEDDER, "input": ["a b c"] * 2048, "encoding_format": "float"}
    _hold([target.send("/v1/embeddings", body, receive_buffer=2048) for _ in range(20)])


def one_large_request(target: Target) -> None:
    """2,048 prompts x 8 choices x 1,000 tokens in a body of 8 KB, again and again."""
    body = {"prompt": ["a"] * 2048, "max_tokens": 1000, "n": 8, "ignore_eos": True}
    _repeat(target, "/v1/completions", _generated(body))


def prompt_scores(target: Target) -> None:
    """Log-probabilities of a million prompt tokens, in eight choices."""
    body = {"prompt": [[9] * 500] * 2048, "n": 8, "max_tokens": 0, "prompt_logprobs": 20}
    _repeat(target, "/v1/completions", _generated(body))


def repeated_scores(target: Target) -> None:
    """Scores of 3 prompts in 128 choices, as many as a request may ask for, which are read."""
    body = {"prompt": [[9] * 500] * 3, "n": 128, "max_tokens": 0, "prompt_logprobs": 20}
    _repeat(target, "/v1/completions", _generated(body))


def generated_scores(target: Target) -> None:
    """Scores of 16 million tokens to be generated, in one answer of 10 GB, again and again."""
    body = {"prompt": ["a"] * 2048, "max_tokens": 1000, "n": 8, "ignore_eos": True, "logprobs": 20}
    _repeat(target, "/v1/completions", _generated(body))


def many_prompts(target: Target) -> None:
    """As many scores of prompts as a request may ask for, again and again."""
    body = {"prompt": [[9] * 500] * 390, "max_tokens": 0, "prompt_logprobs": 20}
    _repeat(target, "/v1/completions", _generated(body))


def long_prompts(target: Target) -> None:
    """The longest prompts, each another one, again and again."""
    tokens = random.Random(9)
    while True:
        prompt = [tokens.randrange(5, 1000) for _ in range(1000)]
        target.ask("/v1/completions", _generated({"prompt": prompt, "max_tokens": 1}))


def decisions(target: Target) -> None:
    """400 questions with 26 options over the longest input, each time another one, by 4 clients."""
    options = [{"value": letter} for letter in string.ascii_lowercase]
    questions = [
        {"type": "choice", "instructions": f"{number}?", "choices": options}
        for number in range(400)
    ]

    def ask(seed: int) -> None:
        letters = random.Random(seed)
        while True:
            text = " ".join(letters.choices(string.ascii_lowercase, k=800))
            target.ask("/v1/decisions", _generated({"input": text, "questions": questions}))

    for seed in range(4):
        _crowd(1, lambda seed=seed: ask(seed))
    _forever()


def half_sent_bodies(target: Target) -> None:
    """150 bodies of 8 MiB that lack their last bytes."""
    data = target.head("/v1/completions", _LARGEST_BODY)
    data += b'{"prompt":"' + b"x" * (_LARGEST_BODY - 512)
    connections = [target.connect() for _ in range(150)]
    for connection in connections:
        with suppress(OSError):
            connection.sendall(data)
    _hold(connections)


def long_texts(target: Target) -> None:
    """Two texts of 8 MB at a time for each model, thousands of times what fits."""
    for model, path, field in (
        (GENERATOR, "/v1/completions", "prompt"),
        (EMBEDDER, "/v1/embeddings", "input"),
    ):
        body = {"model": model, field: "x" * (_LARGEST_BODY - 100)}
        _crowd(2, lambda path=path, body=body: _repeat(target, path, body))
    _forever()


def tokenized_texts(target: Target) -> None:
    """Two clients that have 8 MB tokenized and leave at once."""
    body = {"model": EMBEDDER, "prompt": "! " * (_LARGEST_BODY // 2 - 50)}

    def leave() -> None:
        while True:
            connection = target.send("/tokenize", body)
            time.sleep(0.2)
            connection.close()

    _crowd(2, leave)
    _forever()


def abandoned_chats(target: Target) -> None:
    """20 conversations of 300,000 messages, whose clients leave while they are rendered."""
    body = {"model": GENERATOR, "max_tokens": 1, "messages": [{"role": "assistant"}] * 300_000}

    def leave() -> None:
        while True:
            connection = target.send("/v1/chat/completions", body)
            time.sleep(0.5)
            connection.close()
            time.sleep(10)

    _crowd(20, leave)
    _forever()


def lowest_priority(target: Target) -> None:
    """Three clients that name the lowest priority there is, for 64 choices of a long prompt."""
    body = {"prompt": [7] * 900, "max_tokens": 100, "n": 64, "ignore_eos": True}
    body |= {"priority": -(2**63), "temperature": 1}
    _crowd(3, lambda: _repeat(target, "/v1/completions", _generated(body)))
    _forever()


def many_connections(target: Target) -> None:
    """64 connections that ask for as much as a usual request may, all the time."""
    body = {"prompt": [7] * 500, "max_tokens": 100, "n": 8, "ignore_eos": True}
    _crowd(64, lambda: _repeat(target, "/v1/completions", _generated(body)))
    _forever()


def large_grammars(target: Target) -> None:
    """Eight regular expressions at a time that take seconds to compile, each a new one."""
    letters = random.Random(9)

    def word() -> str:
        return "".join(letters.choice(string.ascii_lowercase) for _ in range(3))

    def ask() -> None:
        while True:
            words = "|".join(rf"\p{{L}}{{3}}{word()}" for _ in range(5000))
            body = {"prompt": "x", "max_tokens": 1, "regex": f"(?i)({words})"}
            target.ask("/v1/completions", _generated(body))

    _crowd(8, ask)
    _forever()


def many_tools(target: Target) -> None:
    """Four clients with 1,000 tools in 50 KB, each time others."""
    schema = {"properties": {"x": {"type": "string"}}}

    def ask(client: int) -> None:
        for number in itertools.count(0, 1000):
            names = (f"f{client}_{number + each}" for each in range(1000))
            functions = [{"name": name, "parameters": schema} for name in names]
            body = {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": each} for each in functions],
                "max_tokens": 1,
            }
            target.ask("/v1/chat/completions", _generated(body))

    for client in range(4):
        _crowd(1, lambda client=client: ask(client))
    _forever()


def bad_requests(target: Target) -> None:
    """Requests that are no HTTP, and some with a wrong key, as fast as they are answered."""
    wrong = Target(target.port, "wrong")

    def ask() -> None:
        while True:
            wrong.ask("/v1/completions", {"prompt": "x" * 100_000})
            with suppress(OSError), target.connect() as connection:
                connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
                connection.recv(4096)

    _crowd(4, ask)
    _forever()


def fuzzed_requests(target: Target) -> None:
    """Requests of every kind, spoilt somewhere; each of four clients draws its own."""
    _, document = target.answer("GET", "/openapi.json", None, target.headers())

    def ask(seed: int) -> None:
        requests = FuzzedRequests(json.loads(document), seed)
        while True:
            requests.send(target)

    for seed in range(4):
        _crowd(1, lambda seed=seed: ask(seed))
    _forever()


ATTACKS: tuple[Attack, ...] = (
    unread_stream,
    unread_answers,
    one_large_request,
    prompt_scores,
    repeated_scores,
    generated_scores,
    many_prompts,
    long_prompts,
    decisions,
    half_sent_bodies,
    long_texts,
    tokenized_texts,
    abandoned_chats,
    lowest_priority,
    many_connections,
    large_grammars,
    many_tools,
    bad_requests,
    fuzzed_requests,
)


def _generated(body: dict[str, Any]) -> dict[str, Any]:
    return {"model": GENERATOR, **body}


def _repeat(target: Target, path: str, body: Any) -> None:
    """Ask again as soon as there is an answer; after a refusal, a moment later."""
    while True:
        if target.ask(path, body) != 200:
            time.sleep(0.1)


def _crowd(size: int, client: Callable[[], None]) -> None:
    for _ in range(size):
        threading.Thread(target=client, daemon=True).start()


def _hold(connections: list[socket.socket]) -> None:
    """Keep them open."""
    while connections:
        time.sleep(60)


def _forever() -> None:
    while True:
        time.sleep(60)
