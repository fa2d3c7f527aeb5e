"""What an engine refuses is named as the request names it, in the message too."""

from typing import Any

import pytest

from engine_core.messages import Failed
from tests.server.api.test_refused_fields import inputs_of
from tests.server.chat_client import HELLO

PAIR: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}
SCORED = {"text_1": "a", "text_2": "b"}
MANY = SCORED | {"text_2": ["b", "c"]}
TEXTS = {"texts": ["a", "b"], "truncate": "NONE"}
PARTS = {"inputs": inputs_of(["a"], ["b"]), "truncate": "NONE"}


@pytest.mark.parametrize(
    ("served", "path", "model", "body", "said", "param"),
    [
        ("deployment", "/v1/rerank", "embedder", PAIR, "input[0]", "query"),
        ("deployment", "/v1/rerank", "embedder", PAIR, "input[2]", "documents[1]"),
        ("deployment", "/v1/rerank", "embedder", PAIR, "other", "other"),
        ("deployment", "/v1/rerank", "embedder", PAIR, None, None),
        ("deployment", "/v1/rerank", "ranker", PAIR, "documents", "documents[0]"),
        ("deployment", "/v1/score", "ranker", SCORED, "documents", "text_2"),
        ("deployment", "/v1/score", "ranker", MANY, "documents[1]", "text_2[1]"),
        ("deployment", "/v1/score", "embedder", SCORED, "input[0]", "text_1"),
        ("deployment", "/v1/score", "embedder", SCORED, "input[1]", "text_2"),
        ("encoders", "/v1/classify", "sorter", {"input": ["a", "b"]}, "documents[1]", "input[1]"),
        ("encoders", "/v2/embed", "plain", TEXTS, "input[1]", "texts[1]"),
        ("encoders", "/v2/embed", "plain", PARTS, "input[1]", "inputs[1]"),
        *[
            ("chats", path, "writer", {"messages": HELLO, "stream": stream}, *names)
            for path, *names in [
                ("/v1/chat/completions", "prompt", "messages"),
                ("/v2/chat", "prompt", "messages"),
                ("/v2/chat", "response_format.schema", "response_format.json_schema"),
            ]
            for stream in (False, True)
        ],
    ],
)
def test_the_field_is_the_requests(request, served, path, model, body, said, param) -> None:
    deployment = request.getfixturevalue(served)
    refusal = Failed(0, "context_length_exceeded", f"{said} has 9 tokens", said)
    deployment.engines[model].script.refusal = refusal
    error = deployment.refusal(path, model=model, **body)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    named = said if param == "messages" else param
    assert error["message"] == f"{named} has 9 tokens"
