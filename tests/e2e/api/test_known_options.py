"""What is obeyed of the known options shows in a real daemon, what is neutral changes nothing. What
is refused (`tests/server/schemas/test_known_options.py`) no handler can read."""

import json
import re
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from server.daemon.application import all_endpoints
from server.generation.signed_reasoning import SignedReasoning
from server.http.openapi import structs_of
from server.schemas.known_options import Treatment, known_options
from tests.e2e.api.conftest import SECRET
from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import HEADERS
from tests.server.schemas.option_examples import entry_for, examples_of

JSON = dict[str, Any]
TABLE = known_options()
STRUCTS = structs_of(all_endpoints())
SIGNED = SignedReasoning(SECRET).seal("Hm.", whole=False)
SEALED = SignedReasoning(SECRET).seal("Hm.")
LONG = " ".join(f"{number} sheep sleep under the old oak tree," for number in range(40))

GENERATION: JSON = {"model": "writer", "max_tokens": 8, "temperature": 0}
CHAT: JSON = {**GENERATION, "messages": [{"role": "user", "content": "Hello"}]}
PANDAS = "What do pandas eat?"
EMBEDDING: JSON = {"model": "embedder", "input": PANDAS}
COHERE_EMBEDDING: JSON = {"model": "embedder", "texts": [PANDAS]}
RERANK: JSON = {
    "model": "ranker", "query": PANDAS,
    "documents": ["Paris is the capital.", "The panda lives on bamboo."],
}  # fmt: skip
SCORE: JSON = {"model": "ranker", "text_1": PANDAS, "text_2": ["Bamboo."]}
CLASSIFY: JSON = {"model": "ranker", "input": PANDAS}
INPUTS: JSON = {"inputs": PANDAS}
TEAMS: list[JSON] = [{"value": "billing", "description": "money"}, {"value": "delivery"}]
TEAM: JSON = {"type": "choice", "instructions": "Which team?", "choices": TEAMS}
BASES: dict[str, JSON] = {
    "/v1/completions": {**GENERATION, "prompt": "The function returns"},
    **dict.fromkeys(("/v1/chat/completions", "/v2/chat", "/cohere/v2/chat", "/v1/messages"), CHAT),
    "/v1/messages/count_tokens": {"model": "writer", "messages": CHAT["messages"]},
    "/v1/responses": {
        "model": "writer", "input": "Hello", "max_output_tokens": 8, "temperature": 0,
    },
    "/v1/responses/input_tokens": {"model": "writer", "input": "Hello"},
    "/v1/responses/compact": {"model": "writer", "input": "Hello", "max_output_tokens": 8},
    "/v1/decisions": {"model": "writer", "input": "The parcel came late.", "questions": [TEAM]},
    "/v1/systemone": {
        "model": "writer", "state": "The parcel came late.",
        "questions": {"team": {"type": "choice", "criteria": {"billing": "money", "other": None}}},
    },
    **dict.fromkeys(("/v1/embeddings", "/pooling"), EMBEDDING),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), COHERE_EMBEDDING),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), RERANK),
    **dict.fromkeys(("/v1/score", "/score"), SCORE),
    **dict.fromkeys(("/v1/classify", "/classify"), CLASSIFY),
    "/v1/batches": {
        "input_file_id": "FILE", "endpoint": "/v1/completions", "completion_window": "24h",
    },
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": {}}]},
    "/tokenize": {"model": "writer", "prompt": "The function returns"},
    "/detokenize": {"model": "writer", "tokens": [394, 424]},
    "/decode": {"ids": [[101, 2054, 102]]},
    **dict.fromkeys(("/", "/embed", "/embed_all", "/embed_sparse", "/predict"), INPUTS),
    "/similarity": {"inputs": {"source_sentence": "A panda.", "sentences": ["A bear.", "Iron."]}},
}  # fmt: skip
# At paths that have a form of our own too.
TEI_FORMS: dict[str, JSON] = {
    "RerankTextsRequest": {"model": "ranker", "query": PANDAS, "texts": ["Paris.", "Bamboo."]},
    "TokenizeTextsRequest": INPUTS,
}
# Names of one thing: a request has one of them.
INSTEAD_OF = {
    "max_completion_tokens": ("max_tokens",), "queries": ("text_1",), "documents": ("text_2",),
    "messages": ("prompt", "input"), "inputs": ("texts",),
}  # fmt: skip
_TEXT = re.compile(r'"(?:text|content)":"(.*?)"[,}]')
_OF_ONE_ANSWER = re.compile(r'"(id|created|created_at|completed_at|expires_at)": ?("[^"]*"|\d+),?')


class Client:
    """Sends requests, in which LONG, FILE and RESPONSE stand for a long text, a file for batches
    and a stored response, SIGNED and SEALED for signatures of reasoning without its text and
    with it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._settled: dict[tuple[str, str], httpx.Response] = {}
        form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}
        response: JSON = {"model": "writer", "input": "Water", "max_output_tokens": 1}
        stored = client.post("/v1/responses", json=response).raise_for_status()
        self._response: str = stored.json()["id"]
        self._file: str = client.post("/v1/files", **form).raise_for_status().json()["id"]

    def post(self, endpoint: str, body: JSON) -> httpx.Response:
        text = json.dumps(body).replace('"LONG"', json.dumps(LONG)).replace("FILE", self._file)
        text = text.replace("RESPONSE", self._response)
        text = text.replace("SIGNED", SIGNED).replace("SEALED", SEALED)
        return self._client.post(endpoint, content=text)

    def answer(self, endpoint: str, body: JSON) -> object:
        """What a 200 says."""
        return told_by_200(self.post(endpoint, body))

    def settled(self, endpoint: str, body: JSON) -> httpx.Response:
        """The answer when all that can be cached is cached. The same request is asked once."""
        key = endpoint, json.dumps(body)
        if key not in self._settled:
            self.post(endpoint, body)
            self._settled[key] = self.post(endpoint, body)
        return self._settled[key]


@pytest.fixture(scope="module")
def http(options_daemon: Daemon) -> Generator[Client]:
    url = options_daemon.url
    with httpx.Client(base_url=url, headers=HEADERS, timeout=60) as client:
        yield Client(client)


def placed(body: JSON, path: str, *value: object) -> JSON:
    """`body` with `value` at a dotted path, or nothing there; of a list, in the entry for it."""
    name, _, rest = path.partition(".")
    if not rest:
        others = {key: other for key, other in body.items() if key != name}
        return others | ({name: value[0]} if value else {})
    inner = body.get(name)
    if isinstance(inner, list):
        at = entry_for(inner, rest)
        return body | {name: [*inner[:at], placed(inner[at], rest, *value), *inner[at + 1 :]]}
    return body | {name: placed(inner or {}, rest, *value)} if inner or value else body


def is_in(body: Any, path: str) -> bool:
    """Whether there is something at a dotted path; of a list, in the entry for it."""
    name, _, rest = path.partition(".")
    body = body[entry_for(body, path)] if isinstance(body, list) else body
    return isinstance(body, dict) and name in body and (not rest or is_in(body[name], rest))


OF_OTHER_MODELS = ("return_sparse", "return_colbert_vecs")
"""Options that the daemon's models refuse: see `test_token_vectors.py`."""


def cases(treatment: Treatment) -> list[Any]:
    """Endpoint, type of request, path of the option; long for all but a type's first path, and for
    a field that another type has been shown to have."""
    found: list[Any] = []
    shown: set[tuple[object, str]] = set()
    for request, endpoints in TABLE.endpoints.items():
        for path in TABLE.of(request, treatment):
            if path in OF_OTHER_MODELS:
                continue
            field = declared_by(request, path.partition(".")[0]), path
            for others, endpoint in enumerate(endpoints):
                marks = pytest.mark.long if others or field in shown else ()
                found.append(pytest.param(endpoint, request, path, marks=marks))
            shown.add(field)
    return found


def declared_by(request: str, field: str) -> object:
    """The class from which a type of request has a field; itself for one that is refused."""
    for kind in reversed(STRUCTS[request].__mro__):
        if field in vars(kind).get("__annotations__", {}):
            return kind
    return request


def base_of(endpoint: str, request: str) -> JSON:
    return TEI_FORMS.get(request) or BASES[endpoint]


def base_beside(endpoint: str, request: str, path: str, beside: JSON) -> JSON:
    """A request in which the option at `path` matters."""
    base = base_of(endpoint, request)
    own = [] if path.partition(".")[0] in beside else [path]
    for name in (*own, *beside):
        for other in (name, *INSTEAD_OF.get(name, ())):
            base = placed(base, other)
    return base | beside


def told_by_200(response: httpx.Response) -> object:
    assert response.status_code == 200, response.text
    return told(response)


def told(response: httpx.Response) -> object:
    """What an answer says, but for what no two share; of a stream whatever its pieces are."""
    if "text/event-stream" not in response.headers["content-type"]:
        return _OF_ONE_ANSWER.sub("", response.text)
    lines = response.text.splitlines()
    *events, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert done in ("[DONE]", '{"type":"message_stop"}')
    chunks = [json.loads(event) for event in events]
    usages = [chunk.get("usage", "absent") for chunk in chunks]
    text = "".join(_TEXT.findall(response.text))
    return text, usages[-1], usages[0] and type(usages[0])


@pytest.mark.parametrize(("endpoint", "request_type", "path"), cases("obeyed"))
def test_what_is_obeyed_shows_in_the_answer(http, endpoint, request_type, path) -> None:
    option, given = TABLE.of(request_type, "obeyed")[path], examples_of(request_type)[path]
    body = base_beside(endpoint, request_type, path, given.beside)
    before = http.settled(endpoint, body)
    assert http.answer(endpoint, placed(body, path, given.example)) != told(before)
    if before.status_code == 200 and not is_in(given.beside, path):
        for neutral in (None, *option.neutral):
            assert http.answer(endpoint, placed(body, path, neutral)) == told(before), neutral


@pytest.mark.parametrize(("endpoint", "request_type", "path"), cases("accepted"))
def test_what_is_accepted_changes_nothing(http, endpoint, request_type, path) -> None:
    option, given = TABLE.of(request_type, "accepted")[path], examples_of(request_type)[path]
    body = base_beside(endpoint, request_type, path, given.beside)
    before = told_by_200(http.settled(endpoint, body))
    absent = [] if is_in(given.beside, path) else [None]
    for value in (*absent, *option.neutral, given.example):
        assert http.answer(endpoint, placed(body, path, value)) == before, value
