"""Junk in every field of every endpoint, while another client goes on getting the same answers."""

import copy
import json
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.api.messages.requests import MessagesRequest
from server.api.responses.requests import CompactRequest, ResponsesRequest
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from tests.e2e.api.test_known_options import STRUCTS, TABLE, base_of
from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import HEADERS
from tests.patience import PATIENCE

JSON = dict[str, Any]
Place = tuple[str, ...]


class Endpoint(NamedTuple):
    """A path, what it reads, and a body that it accepts."""

    path: str
    struct: type[msgspec.Struct]
    body: JSON


FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
GENERATION: JSON = {
    "max_tokens": 2, "stop": ["zz"], "stop_token_ids": [7], "logit_bias": {"5": 1},
    "response_format": FORM,
}  # fmt: skip
TALK = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "a", "name": "b", "tool_calls": None, "tool_call_id": None,
     "refusal": None, "reasoning_content": None},
]  # fmt: skip
TEXT, DATA = {"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"a": [1]}}
TOOLS = [
    {"role": "user", "content": [{**TEXT}, {**DATA}], "phase": None},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{**TEXT}]},
]
BLOCKS = [
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "a", "signature": "b"}, {**TEXT, "type": "text"},
        {"type": "redacted_thinking", "data": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": [{**TEXT, "type": "text"}]}]},
]  # fmt: skip
CONVERSATION: JSON = {
    "system": [{**TEXT, "type": "text"}], "messages": BLOCKS, "tool_choice": {"type": "auto"},
    "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low"},
}  # fmt: skip
PART = {**TEXT, "type": "input_text"}
RESPONSE: JSON = {
    "input": [
        {"role": "user", "content": [PART]},
        {"type": "reasoning", "summary": [PART], "encrypted_content": "a"},
        {"role": "assistant", "content": [PART]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "namespace": "n", "name": "g", "input": "a"},
        {"type": "function_call_output", "call_id": "c", "output": [PART]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "a"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "namespace", "name": "n", "tools": [
            {"type": "custom", "name": "g", "format": {"type": "text"}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    "reasoning": {"effort": "low"},
}  # fmt: skip
QUESTIONS = [
    {"type": "predicate", "instructions": [{**TEXT}], "name": "a"},
    {"type": "choice", "instructions": "a", "choices": [{"value": True}, {"value": "a"}]},
    {"type": "score", "instructions": "a", "levels": [{"label": "a"}, {"label": "b"}]},
]
NESTED: dict[str, JSON] = {
    "CompletionRequest": {"prompt": ["The", {"prompt": "A"}], **GENERATION},
    "ChatRequest": {"messages": TALK, **GENERATION},
    "EmbeddingRequest": {"messages": TALK, "input": None},
    "MessagesRequest": CONVERSATION,
    "CountTokensRequest": CONVERSATION,
    "ResponsesRequest": RESPONSE,
    "InputTokensRequest": RESPONSE,
    "DecisionRequest": {"input": TOOLS, "questions": QUESTIONS},
    "RerankRequest": {"documents": ["b", {"text": "c"}]},
    "SimilarityRequest": {"parameters": {"truncate": True}},
}
"""Fields that hold others, in which junk is planted, too."""
ENDPOINTS = [
    Endpoint(paths[0], STRUCTS[name], base_of(paths[0], name) | NESTED.get(name, {}))
    for name, paths in TABLE.endpoints.items()
    if name not in ("BatchRequest", "TokenizeTextsRequest")
]

UGLY_TEXTS = ["", "a\0b", "\ud800", "\U0010ffff" * 50, "x" * 5000, "nobody", "1"]
UGLY_NUMBERS = [-1, 0, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 5e-324]
UGLY_VALUES: list[Any] = [
    *UGLY_TEXTS, *UGLY_NUMBERS, None, True, False, [], {}, [[]], [None], [{}], [[1, "a"]], ["a", 1],
    [-1], [10**40], {"": ""}, {"type": {}}, {"\0": "\ud800"}, {"a": {"b": [{}]}}, ["\ud800"],
]  # fmt: skip
UGLY = {"/v1/completions", "/v1/embeddings", "/similarity"}
"""One endpoint of each family, which have readers in common."""
# What json.dumps would not write.
UGLY_FRAGMENTS = [
    "NaN", "-Infinity", "1e309", "01", "0x1", "tru", "", '"\\u12"', '"\t"', "[" * 5000,
    "[" * 200 + "]" * 200, "9" * 5000, '{"a": 1, "a": 2}',
]  # fmt: skip

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
junk = st.recursive(
    scalars | st.sampled_from(UGLY_VALUES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
fragments = junk.map(json.dumps) | st.sampled_from(UGLY_FRAGMENTS)


@pytest.fixture(scope="module")
def http(options_daemon: Daemon) -> Generator[httpx.Client]:
    with httpx.Client(base_url=options_daemon.url, headers=HEADERS, timeout=60) as client:
        yield client


@pytest.fixture
def steady(options_daemon: Daemon) -> Generator[None]:
    """Another client, which asks for the same text and the same vector all the while."""
    stop = threading.Event()
    seen: list[tuple[str, list[float]]] = []

    def ask() -> None:
        with httpx.Client(base_url=options_daemon.url, headers=HEADERS, timeout=60) as client:
            while not stop.is_set():
                seen.append(ask_steadily(client))
                stop.wait(0.4)

    thread = threading.Thread(target=ask)
    with httpx.Client(base_url=options_daemon.url, headers=HEADERS, timeout=60) as client:
        text, vector = ask_steadily(client)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert seen
    assert {said for said, _ in seen} == {text}
    assert all(told == pytest.approx(vector, abs=1e-5) for _, told in seen)


def ask_steadily(client: httpx.Client) -> tuple[str, list[float]]:
    asked = {"prompt": "The function returns", "max_tokens": 12, "temperature": 0}
    text = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    vector = client.post("/v1/embeddings", json={"input": "The cat sat."}).json()["data"][0]
    return text, vector["embedding"]


def places(endpoint: Endpoint) -> list[Place]:
    """Every field that the endpoint knows, and every place within its body."""
    return sorted({*((name,) for name in get_type_hints(endpoint.struct)), *within(endpoint.body)})


def own_places(endpoint: Endpoint) -> list[Place]:
    """Those that completions do not have: what chats share with them is one struct's."""
    shared = get_type_hints(CompletionRequest) if endpoint.struct is ChatRequest else {}
    return [place for place in places(endpoint) if place[0] not in shared]


def within(value: Any) -> Iterator[Place]:
    members = enumerate(value) if isinstance(value, list) else value.items()
    for key, member in members:
        yield (str(key),)
        if isinstance(member, list | dict):
            yield from ((str(key), *place) for place in within(member))


def planted(body: JSON, place: Place, fragment: str) -> bytes:
    """`body` as JSON, with `fragment` as it stands at `place`."""
    changed = copy.deepcopy(body)
    value: Any = changed
    for key in place[:-1]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    value[int(place[-1]) if isinstance(value, list) else place[-1]] = "\0here"
    return json.dumps(changed).replace(json.dumps("\0here"), fragment).encode()


def check(http: httpx.Client, endpoint: Endpoint, place: Place, fragment: str) -> None:
    """Served, or refused in words that name the field, unless it is no JSON at all."""
    answer = http.post(endpoint.path, content=planted(endpoint.body, place, fragment))
    told = f"{place}: {fragment[:200]} -> {answer.status_code} {answer.text[:500]}"
    if answer.status_code == 200:
        return
    assert answer.status_code in (400, 404, 413, 422, 424), told
    message = answer.json()["error"]
    if isinstance(message, dict):
        fault = message.get("details", message)  # Anthropic's shape
        message = f"{fault['param']} {message['message']}"
    # Without texts it is the `/rerank` of others than TEI's clients.
    no_texts = (endpoint.path, place, fragment) == ("/rerank", ("texts",), "null")
    named = "documents" if no_texts else place[0]
    # A template may show the field, and the prompt be too long for it.
    shows = (ChatRequest, CompactRequest, MessagesRequest, ResponsesRequest)
    is_shown = endpoint.struct in shows and "context length is " in message
    assert named in message or is_shown or not is_json(fragment), told


def is_json(fragment: str) -> bool:
    try:
        msgspec.json.decode(fragment.encode())
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param(each, id=each.path, marks=() if each.path in UGLY else pytest.mark.long)
        for each in ENDPOINTS
    ],
)
def test_ugly_values_in_every_field(http: httpx.Client, endpoint: Endpoint) -> None:
    fragments = [*map(json.dumps, UGLY_VALUES), *UGLY_FRAGMENTS]
    with ThreadPoolExecutor(8) as pool:
        for place in own_places(endpoint):
            list(pool.map(partial(check, http, endpoint, place), fragments))


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
@settings(max_examples=50)
@given(data=st.data())
def test_random_junk(http: httpx.Client, endpoint: Endpoint, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(endpoint)))
    check(http, endpoint, place, data.draw(fragments))
