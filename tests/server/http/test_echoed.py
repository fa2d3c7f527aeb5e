"""What errors repeat of a request: its beginning."""

import json
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.api.tei import protocol as tei
from server.api.tokenize import TokenizeRequest
from server.errors import quoted, shortened
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.rerank import RerankRequest
from tests.server.conftest import Deployment

LONGEST_ERROR = 4096
MESSAGE: dict[str, Any] = {"role": "user", "content": "The"}
REQUESTS: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"model": "writer", "prompt": "The"}),
    "/v1/chat/completions": (ChatRequest, {"model": "writer", "messages": [MESSAGE]}),
    "/v1/embeddings": (EmbeddingRequest, {"model": "embedder", "input": "The"}),
    "/v1/rerank": (RerankRequest, {"model": "ranker", "query": "The", "documents": ["fox"]}),
    "/tokenize": (TokenizeRequest, {"model": "writer", "prompt": "The"}),
    "/embed": (tei.EmbedRequest, {"inputs": "The"}),
    "/similarity": (tei.SimilarityRequest, {"inputs": {"source_sentence": "a", "sentences": []}}),
}
long_texts = st.builds(
    lambda letters, times: letters * times,
    st.text(st.sampled_from("a`'\"\\ \n\0\x01é漢🎉\U000e0001$.-[]"), min_size=1, max_size=20),
    st.integers(100, 2000),
)
values = st.recursive(
    long_texts,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(long_texts | st.sampled_from(["type", "role", "text"]), inner, max_size=2)
    ),
    max_leaves=4,
)
places = st.sampled_from(
    [(path, field) for path, (struct, _) in REQUESTS.items() for field in get_type_hints(struct)]
)


@settings(max_examples=150)
@given(places, values)
@example(("/v1/completions", "model"), "x" * 5000)
@example(("/v1/completions", "model"), "\U000e0001" * 5000)
@example(("/v1/chat/completions", "messages"), [{**MESSAGE, "role": "\x01" * 5000}])
@example(("/v1/chat/completions", "messages"), [{**MESSAGE, "content": [{"type": "🎉" * 5000}]}])
@example(("/v1/embeddings", "input_type"), "x" * 5000)
@example(("/v1/embeddings", "prompt_name"), "x" * 5000)
@example(("/v1/completions", "regex"), "(" + "x" * 5000)
@example(("/v1/completions", "json_schema"), {"x" * 5000: "y" * 5000, "type": "z" * 5000})
def test_no_value_makes_an_error_long(
    deployment: Deployment, place: tuple[str, str], value: object
) -> None:
    path, field = place
    answer = deployment.post(path, {**REQUESTS[path][1], field: value})
    assert answer.status_code == 200 or len(answer.content) <= LONGEST_ERROR, answer.text


@pytest.mark.parametrize("path", [*REQUESTS, f"/v1/{'x' * 5000}"], ids=[*REQUESTS, "unknown"])
def test_no_header_and_no_path_makes_an_error_long(deployment: Deployment, path: str) -> None:
    _, body = REQUESTS.get(path, (None, {}))
    for name in ("content-encoding", "x-request-id", "content-type"):
        content = json.dumps({**body, "model": "none"})
        answer = deployment.http.post(path, content=content, headers={name: "x" * 5000})
        assert answer.status_code >= 400
        assert len(answer.content) <= LONGEST_ERROR


def test_the_rest_of_the_message_stays(deployment: Deployment) -> None:
    answer = deployment.post("/v1/completions", {"prompt": "a", "model": "x" * 5000}).json()
    message = f"there is no model '{'x' * 99}…' here (writer, embedder, ranker)"
    assert answer["error"]["message"] == message


def test_what_is_short_stays() -> None:
    text = "é" * 100
    assert shortened(text) == text
    assert quoted(text) == f"'{text}'"
    assert quoted(None) == "None"
    assert shortened(text + "é") == "é" * 99 + "…"
    assert len(quoted([text] * 3)) == 102
