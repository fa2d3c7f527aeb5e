"""`/invocations` answers what the endpoint does to which a body belongs by its fields."""

import re

import pytest

from tests.server.chat_client import HELLO
from tests.server.conftest import Deployment

OF_ONE_ANSWER = re.compile(r'"(id|created)": ?("[^"]*"|\d+),?')
TEXTS = {"query": "red wine", "documents": ["red apples", "red wine and cheese"]}
PAIRS = {"text_1": "red wine", "text_2": TEXTS["documents"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "The quick", "max_tokens": 2}),
        ("/v1/completions", {"model": "writer", "prompt": "The quick", "messages": None}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/embeddings", {"model": "embedder", "input": ["a", "b"], "encoding_format": "base64"}),
        ("/pooling", {"model": "embedder", "input": "a", "task": "token_embed"}),
        ("/v1/classify", {"model": "ranker", "input": ["a", "b"]}),
        ("/pooling", {"model": "ranker", "input": "a", "task": "classify"}),
        ("/v1/score", {"model": "ranker", **PAIRS}),
        ("/v1/score", {"model": "ranker", "queries": "a", "documents": ["b"]}),
        ("/v1/rerank", {"model": "ranker", **TEXTS}),
        ("/v1/rerank", {"model": "embedder", **TEXTS, "top_n": 1}),
    ],
)
def test_fields_and_the_model_say_which_endpoint_is_meant(deployment, path, body) -> None:
    meant, found = deployment.post(path, body), deployment.post("/invocations", body)
    assert (meant.status_code, found.status_code) == (200, 200), found.text
    assert OF_ONE_ANSWER.sub("", found.text) == OF_ONE_ANSWER.sub("", meant.text)


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_a_chat(chats: Deployment, stream: bool) -> None:
    body = {"model": "writer", "messages": HELLO, "max_tokens": 2, "stream": stream}
    meant = chats.choices("/v1/chat/completions", **body)
    assert chats.choices("/invocations", **body) == meant


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"model": "nobody", "prompt": "a"}, "model", "there is no model 'nobody'"),
        ({"model": "embedder", "prompt": "a"}, "model", "not /v1/completions"),
        ({"model": 7, "prompt": "a"}, "model", "model: expected `str"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "temperature: expected"),
        ({"input": ""}, "input", "input: must not be empty"),
        ({"query": "a"}, None, "not a JSON object with the fields of an endpoint: messages; "),
        ({}, None, "text_1 and text_2; queries and documents"),
        (["a"], None, "not a JSON object"),
    ],
)
def test_what_is_wrong_is_named_as_there(deployment, body, param, reason) -> None:
    answer = deployment.post("/invocations", body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if "nobody" in reason else 400)
    assert error["param"] == param
    assert reason in error["message"]
