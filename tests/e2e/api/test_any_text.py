"""Every valid Unicode string is text, NUL and noncharacters included; a lone surrogate is none."""

import json
from typing import Any

import httpx
import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME
from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import KEY

# Stands for the text in a body, and survives json.dumps as it is.
MARK = "<text>"
TEXTS = {
    "nul": "\0",
    "nul inside": "The gate\0 is open.\0",
    "controls": "\x01\x1b\x7f\x85\u2028",
    "the last of each plane": "\ud7ff\ue000\ufeff\uffff\U0010ffff",
}
GENERATED = {"model": GENERATOR_NAME, "max_tokens": 3}
CALL = {"id": MARK, "function": {"name": MARK, "arguments": json.dumps({"a": "b"})}}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"const": MARK}}}
EMBEDDED = {"model": EMBEDDER_NAME}


def talk(content: Any = "Hi.", role: str = "user", **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": role, "content": content}]
    return "/v1/chat/completions", {**GENERATED, "messages": messages, **fields}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt": ("/v1/completions", {**GENERATED, "prompt": MARK}),
    "prompts": ("/v1/completions", {**GENERATED, "prompt": ["a", MARK]}),
    "echo": ("/v1/completions", {**GENERATED, "prompt": MARK, "echo": True, "logprobs": 1}),
    "stop": ("/v1/completions", {**GENERATED, "prompt": "a", "stop": ["b", MARK]}),
    "choice": ("/v1/completions", {**GENERATED, "prompt": "a", "choice": ["b", MARK]}),
    "regex": ("/v1/completions", {**GENERATED, "prompt": "a", "regex": f"a{MARK}+"}),
    "schema": ("/v1/completions", {**GENERATED, "prompt": "a", "response_format": SCHEMA}),
    "salt": ("/v1/completions", {**GENERATED, "prompt": "a", "cache_salt": MARK}),
    "chat": talk(MARK),
    "chat part": talk([{"type": "text", "text": MARK}]),
    "chat continued": talk(MARK, role="assistant", continue_final_message=True),
    "chat variable": talk(chat_template_kwargs={"x": [MARK]}),
    "chat stop": talk(stop=MARK),
    "tokenize": ("/tokenize", {"model": GENERATOR_NAME, "prompt": MARK}),
    "tokenize chat": (
        "/tokenize",
        {"model": GENERATOR_NAME, "messages": [{"role": "user", "content": MARK}]},
    ),
    "input": ("/v1/embeddings", {**EMBEDDED, "input": MARK}),
    "inputs": ("/v1/embeddings", {**EMBEDDED, "input": ["a", MARK]}),
    "rerank": ("/v1/rerank", {"query": MARK, "documents": ["a", MARK], "return_documents": True}),
    "score": ("/v1/score", {"text_1": MARK, "text_2": ["a", MARK]}),
    "embed": ("/embed", {"inputs": MARK}),
    "embed_all": ("/embed_all", {"inputs": ["a", MARK]}),
    "pooling": ("/pooling", {**EMBEDDED, "input": ["a", MARK], "task": "token_embed"}),
    "similarity": ("/similarity", {"inputs": {"source_sentence": MARK, "sentences": [MARK]}}),
    "TEI's rerank": ("/rerank", {"query": MARK, "texts": ["a", MARK], "return_text": True}),
}
CLASSIFIED: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("/v1/classify", {"model": "ranker", "input": ["a", MARK]}),
    "predict": ("/predict", {"inputs": MARK}),
    "predict pairs": ("/predict", {"inputs": [["a", MARK], [MARK]]}),
}


CALLING = {**GENERATED, "messages": [{"role": "assistant", "tool_calls": [CALL]}]}


def filled(body: dict[str, Any], raw: str) -> bytes:
    """The body with `raw`, JSON without its quotes, where it says MARK."""
    return json.dumps(body).replace(MARK, raw).encode()


def post(daemon: Daemon, path: str, content: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.post(f"{daemon.url}{path}", content=content, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("served", "path", "body"),
    [
        *[pytest.param("demo", *case, id=name) for name, case in BODIES.items()],
        *[pytest.param("options_daemon", *case, id=name) for name, case in CLASSIFIED.items()],
    ],
)
def test_any_text_is_taken(request, served: str, path: str, body: dict[str, Any]) -> None:
    for text in TEXTS.values():
        daemon = request.getfixturevalue(served)
        answer = post(daemon, path, filled(body, json.dumps(text)[1:-1]))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_of_a_call_comes_to_the_template(demo: Daemon, text: str) -> None:
    """The demo model's writes no calls: they are text."""
    answer = post(demo, "/v1/chat/completions", filled(CALLING, json.dumps(text)[1:-1]))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("raw", [r"\ud800", r"a\udc00b", r"\udfff\ud800"])
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_a_lone_surrogate_is_no_text(
    demo: Daemon, path: str, body: dict[str, Any], raw: str
) -> None:
    assert post(demo, path, filled(body, raw)).status_code in (400, 422)


def complete(daemon: Daemon, **fields: Any) -> dict[str, Any]:
    body = {"model": GENERATOR_NAME, "prompt": "a", "max_tokens": 20, **fields}
    answer = post(daemon, "/v1/completions", json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("form", [{"choice": ["gate\0open"]}, {"regex": "gate\0open"}])
def test_a_nul_is_generated_and_stops(demo: Daemon, form: dict[str, Any]) -> None:
    whole = complete(demo, **form)
    assert (whole["text"], whole["finish_reason"]) == ("gate\0open", "stop")
    cut = complete(demo, **form, stop="\0", logprobs=0)
    assert (cut["text"], cut["finish_reason"]) == ("gate", "stop")
    assert "\0" in cut["logprobs"]["tokens"][-1]
    told = complete(demo, **form, stop=["\0o"], include_stop_str_in_output=True)
    assert told["text"] == "gate\0o"


def test_a_nul_comes_back_as_it_was_sent(demo: Daemon) -> None:
    text = "a\0b\0"
    assert complete(demo, prompt=text, echo=True, max_tokens=0)["text"] == text
    body = {"model": GENERATOR_NAME, "prompt": text, "add_special_tokens": False}
    tokens = post(demo, "/tokenize", json.dumps(body).encode()).json()["tokens"]
    body = {"model": GENERATOR_NAME, "tokens": tokens}
    assert post(demo, "/detokenize", json.dumps(body).encode()).json() == {"prompt": text}


@pytest.mark.parametrize("count", range(1, 6))
def test_a_text_that_ends_inside_a_character_ends_before_it(demo: Daemon, count: int) -> None:
    choice = complete(demo, regex="a\U0001f600", logprobs=0, max_tokens=count)
    tokens = ["a", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x98", r"bytes:\x80"]
    assert choice["logprobs"]["tokens"] == tokens[:count]
    assert choice["text"] == ("a\U0001f600" if count == len(tokens) else "a")
