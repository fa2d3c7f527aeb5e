"""Every row of the table of known options, against a real daemon: what is obeyed shows, what is
refused is named, what is neutral changes nothing."""

import json
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from server.schemas.known_options import Treatment, known_options
from tests.e2e.daemon import running
from tests.server.schemas.option_examples import examples_of
from tests.workers.checkpoints import save_bert, save_masked_lm
from tests.workers.heads.reranking_qwen3 import save_reranking_qwen3

JSON = dict[str, Any]
TABLE = known_options()
VOCABULARY = 30_522
LONG = " ".join(f"{number} sheep sleep under the old oak tree," for number in range(40))
# Whatever a template can be told shows in its prompt.
TEMPLATE = """\
{{ bos_token }}{% for message in messages %}{{ message.role }} {{ message.name }}: \
{{ message.reasoning_content }} {{ message.content }} \
{{ message.tool_calls }} {{ message.tool_call_id }}
{% endfor %}{{ reasoning_effort }} {{ enable_thinking }}
{% if add_generation_prompt %} >{% endif %}"""

GENERATION: JSON = {"model": "writer", "max_tokens": 8, "temperature": 0}
CHAT: JSON = {**GENERATION, "messages": [{"role": "user", "content": "Hello"}]}
EMBEDDING: JSON = {"model": "embedder", "input": "What do pandas eat?"}
COHERE_EMBEDDING: JSON = {"model": "embedder", "texts": ["What do pandas eat?"]}
RERANK: JSON = {
    "model": "ranker",
    "query": "What do pandas eat?",
    "documents": ["Paris is the capital.", "The panda lives on bamboo."],
}
SCORE: JSON = {"model": "ranker", "text_1": "What do pandas eat?", "text_2": ["Bamboo."]}
CLASSIFY: JSON = {"model": "ranker", "input": "What do pandas eat?"}
BASES: dict[str, JSON] = {
    "/v1/completions": {**GENERATION, "prompt": "The function returns"},
    "/v1/chat/completions": CHAT,
    "/v2/chat": CHAT,
    "/v1/embeddings": EMBEDDING,
    "/v1/embed": COHERE_EMBEDDING,
    "/v2/embed": COHERE_EMBEDDING,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/score": SCORE,
    "/score": SCORE,
    "/v1/classify": CLASSIFY,
    "/classify": CLASSIFY,
    "/pooling": EMBEDDING,
    "/v1/batches": {
        "input_file_id": "FILE",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    },
    "/tokenize": {"model": "writer", "prompt": "The function returns"},
    "/detokenize": {"model": "writer", "tokens": [394, 424]},
    "/decode": {"ids": [[101, 2054, 102]]},
    "/": {"inputs": "What do pandas eat?"},
    "/embed": {"inputs": "What do pandas eat?"},
    "/embed_all": {"inputs": "What do pandas eat?"},
    "/embed_sparse": {"inputs": "What do pandas eat?"},
    "/similarity": {"inputs": {"source_sentence": "A panda.", "sentences": ["A bear.", "Iron."]}},
    "/predict": {"inputs": "What do pandas eat?"},
}
# At paths that have a form of our own too.
TEI_FORMS: dict[str, JSON] = {
    "RerankTextsRequest": {"query": "What do pandas eat?", "texts": ["Paris.", "Bamboo."]},
    "TokenizeTextsRequest": {"inputs": "What do pandas eat?"},
}
# Two names of one thing: a request has one of them.
INSTEAD_OF = {
    "max_completion_tokens": "max_tokens", "queries": "text_1", "documents": "text_2",
    "messages": "prompt", "inputs": "texts",
}  # fmt: skip
_TEXT = re.compile(r'"(?:text|content)":"(.*?)"[,}]')
_OF_ONE_ANSWER = re.compile(r'"(id|created|created_at|expires_at)": ?("[^"]*"|\d+),?')


class Daemons:
    """Two, because TEI's requests name no model: only one may be a reranker."""

    def __init__(self, others: httpx.Client, judge: httpx.Client) -> None:
        self._others, self._judge = others, judge
        self._settled: dict[tuple[str, str], httpx.Response] = {}
        form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}
        self.file: str = others.post("/v1/files", **form).raise_for_status().json()["id"]

    def post(self, endpoint: str, *, content: str) -> httpx.Response:
        to = self._judge if json.loads(content).get("model") == "judge" else self._others
        return to.post(endpoint, content=content)

    def settled(self, endpoint: str, content: str) -> httpx.Response:
        """The answer when all that can be cached is cached; the same request is asked once."""
        if (endpoint, content) not in self._settled:
            self.post(endpoint, content=content)
            self._settled[endpoint, content] = self.post(endpoint, content=content)
        return self._settled[endpoint, content]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemons]:
    """To a generator, an embedder, a sparse one and a reranker, in which every option can show."""
    folder = tmp_path_factory.mktemp("models")
    embedder = demo_models()[EMBEDDER_NAME]
    models = {name: folder / name for name in ("writer", "embedder", "sparse", "ranker")}
    shutil.copytree(demo_models()[GENERATOR_NAME], models["writer"])
    (models["writer"] / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copytree(embedder, models["embedder"])
    change(models["embedder"] / "config.json", is_matryoshka=True)
    save_masked_lm(models["sparse"], bias=-2.0, vocab_size=VOCABULARY, num_hidden_layers=1)
    save_bert(models["ranker"], labels=1, vocab_size=VOCABULARY, num_hidden_layers=1)
    for file in embedder.glob("*token*.json"):
        shutil.copy(file, models["sparse"])
        shutil.copy(file, models["ranker"])
    for name in ("embedder", "sparse"):
        prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
        (models[name] / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    names = [word for name in models for word in ("--served-model-name", name)]
    state = ("--state-dir", str(folder / "state"))
    common = ("--threads", "1", "--priority-range=-1:1")
    with (
        running(*map(str, models.values()), *names, *common, *state) as daemon,
        running(str(save_judge(folder)), "--task", "rerank", *common) as other,
        httpx.Client(base_url=daemon.url, timeout=60) as client,
        httpx.Client(base_url=other.url, timeout=60) as judge,
    ):
        yield Daemons(client, judge)


def save_judge(folder: Path) -> Path:
    """A generator that reranks."""
    path = folder / "Qwen3-Reranker" / "judge"
    save_reranking_qwen3(path)
    return path


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def placed(body: JSON, path: str, *value: object) -> JSON:
    """`body` with `value` at a dotted path, or without anything there; of a list, in its first
    entry."""
    name, _, rest = path.partition(".")
    if not rest:
        others = {key: other for key, other in body.items() if key != name}
        return others | ({name: value[0]} if value else {})
    inner = body.get(name)
    if isinstance(inner, list):
        return body | {name: [placed(inner[0], rest, *value), *inner[1:]]}
    return body | {name: placed(inner or {}, rest, *value)} if inner or value else body


def is_in(body: Any, path: str) -> bool:
    """Whether there is something at a dotted path; of a list, in its first entry."""
    name, _, rest = path.partition(".")
    body = body[0] if isinstance(body, list) else body
    return isinstance(body, dict) and name in body and (not rest or is_in(body[name], rest))


def cases(treatment: Treatment) -> list[Any]:
    """Parameters: endpoint, type of request, path of the option."""
    return [
        pytest.param(endpoint, request, path, marks=pytest.mark.long if others else ())
        for request, endpoints in TABLE.endpoints.items()
        for path in TABLE.of(request, treatment)
        # Other paths of one type of request have the same reader.
        for others, endpoint in enumerate(endpoints)
    ]


def base_of(endpoint: str, request: str) -> JSON:
    return TEI_FORMS.get(request) or BASES[endpoint]


def base_beside(endpoint: str, request: str, path: str, beside: JSON) -> JSON:
    """A request in which the option at `path` matters."""
    base = base_of(endpoint, request)
    own = [] if path.partition(".")[0] in beside else [path]
    for name in (*own, *beside):
        base = placed(placed(base, name), INSTEAD_OF.get(name, name))
    return base | beside


class Client:
    """Sends variations of one request."""

    def __init__(self, http: Daemons, endpoint: str, body: JSON) -> None:
        self._http, self._endpoint, self._body = http, endpoint, body

    def post(self, path: str = "", *value: object) -> httpx.Response:
        """The answer, with `value` at `path`."""
        body = placed(self._body, path, *value) if path else self._body
        return self._http.post(self._endpoint, content=self._content(body))

    def answer(self, path: str, *value: object) -> object:
        """What a 200 says with `value` at `path`."""
        return told_by_200(self.post(path, *value))

    def before(self) -> httpx.Response:
        """The answer to the request itself."""
        return self._http.settled(self._endpoint, self._content(self._body))

    def _content(self, body: JSON) -> str:
        text = json.dumps(body)
        return text.replace('"LONG"', json.dumps(LONG)).replace("FILE", self._http.file)


def told_by_200(response: httpx.Response) -> object:
    assert response.status_code == 200, response.text
    return told(response)


def told(response: httpx.Response) -> object:
    """What an answer says, but for what no two share; of a stream whatever its pieces are."""
    if "text/event-stream" not in response.headers["content-type"]:
        return _OF_ONE_ANSWER.sub("", response.text)
    lines = response.text.splitlines()
    *events, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    usages = [chunk.get("usage", "absent") for chunk in chunks]
    text = "".join(_TEXT.findall(response.text))
    return text, usages[-1], usages[0] and type(usages[0])


@pytest.mark.parametrize(("endpoint", "request_type", "path"), cases("obeyed"))
def test_what_is_obeyed_shows_in_the_answer(http, endpoint, request_type, path) -> None:
    option, given = TABLE.of(request_type, "obeyed")[path], examples_of(request_type)[path]
    client = Client(http, endpoint, base_beside(endpoint, request_type, path, given.beside))
    before = client.before()
    assert client.answer(path, given.example) != told(before)
    if before.status_code == 200 and not is_in(given.beside, path):
        for neutral in (None, *option.neutral):
            assert client.answer(path, neutral) == told(before), neutral


@pytest.mark.parametrize(("endpoint", "request_type", "path"), cases("accepted"))
def test_what_is_accepted_changes_nothing(http, endpoint, request_type, path) -> None:
    option, given = TABLE.of(request_type, "accepted")[path], examples_of(request_type)[path]
    client = Client(http, endpoint, base_beside(endpoint, request_type, path, given.beside))
    before = told_by_200(client.before())
    absent = [] if is_in(given.beside, path) else [None]
    for value in (*absent, *option.neutral, given.example):
        assert client.answer(path, value) == before, value


@pytest.mark.parametrize(("endpoint", "request_type", "path"), cases("refused"))
def test_what_is_refused_is_named(http, endpoint, request_type, path) -> None:
    option, given = TABLE.of(request_type, "refused")[path], examples_of(request_type)[path]
    client = Client(http, endpoint, base_beside(endpoint, request_type, path, given.beside))
    response = client.post(path, given.example)
    is_tei = "inputs" in base_of(endpoint, request_type) or request_type in TEI_FORMS
    assert response.status_code == (422 if is_tei else 400), response.text
    error = response.json()["error"]
    named = error.partition(" ")[0] if is_tei else error["param"]
    assert named.replace("[0]", "") == path
    if given.beside:
        before = told_by_200(client.before())
        for neutral in (None, *option.neutral):
            assert client.answer(path, neutral) == before, neutral


@pytest.mark.parametrize(
    ("endpoint", "request_type"),
    [(path, request) for request, paths in TABLE.endpoints.items() for path in paths],
)
def test_neutral_values_of_what_is_refused_change_nothing(http, endpoint, request_type) -> None:
    refused = TABLE.of(request_type, "refused")
    body = base_of(endpoint, request_type)
    before = told_by_200(Client(http, endpoint, body).before())
    examples = examples_of(request_type)
    values = {
        path: [None, *option.neutral]
        for path, option in refused.items()
        if not examples[path].beside
    }
    for turn in range(max(map(len, values.values()), default=0)):
        varied = body
        for path, neutral in values.items():
            varied = placed(varied, path, neutral[turn % len(neutral)])
        assert told_by_200(Client(http, endpoint, varied).post()) == before
