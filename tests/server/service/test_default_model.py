"""A request whose `model` nobody serves is answered by the default model, if that serves it."""

import json

import httpx
import msgspec
import pytest

from server.batches.answering import Answer, Line
from server.batches.engine_backend import engine_backend
from server.settings.settings import ServerConfig, unattended
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

BODIES = {
    "/v1/completions": {"prompt": "a", "max_tokens": 3},
    "/v1/decisions": {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]},
    "/v1/embeddings": {"input": "a"},
    "/v1/rerank": {"query": "a", "documents": ["a"]},
}
UNKNOWN = (404, "model_not_found")


def config_of(builder: DeploymentBuilder, default: str | None) -> ServerConfig:
    """A generator, which is also called `chat`, an embedder and a reranker."""
    writer, *others = builder.models()
    writer = msgspec.structs.replace(writer, aliases=("chat",))
    return server_config(writer, *others, default_model=default)


@pytest.fixture(scope="module")
def chats(module_builder: DeploymentBuilder) -> Deployment:
    """The generator is the default model, by its second name."""
    return module_builder.open(config_of(module_builder, "chat"))


def outcome(response: httpx.Response) -> object:
    """The model that an answer names, or the error's status and code."""
    body = response.json()
    return body["model"] if response.is_success else (response.status_code, body["error"]["code"])


@pytest.mark.parametrize(
    ("path", "model", "expected"),
    [
        ("/v1/completions", "gpt-4o", "writer"),
        ("/v1/completions", "", "writer"),
        ("/v1/completions", "chat", "writer"),
        ("/v1/completions", "embedder", (400, "wrong_endpoint")),
        ("/v1/decisions", "gpt-4o", "writer"),
        ("/v1/decisions", "embedder", (400, "wrong_endpoint")),
        ("/v1/embeddings", "embedder", "embedder"),
        ("/v1/embeddings", None, "embedder"),
        ("/v1/embeddings", "gpt-4o", UNKNOWN),
        ("/v1/rerank", "gpt-4o", UNKNOWN),
        ("/v1/rerank", None, (400, "model_required")),
    ],
)
def test_only_an_unknown_name_means_the_default_model_and_only_where_that_serves(
    chats: Deployment, path: str, model: str | None, expected: object
) -> None:
    assert outcome(chats.post(path, BODIES[path] | {"model": model})) == expected


def test_the_list_of_models_stays_as_it_is(chats: Deployment) -> None:
    names = [card["id"] for card in chats.http.get("/v1/models").json()["data"]]
    assert names == ["writer", "chat", "embedder", "ranker"]
    assert outcome(chats.http.get("/v1/models/gpt-4o")) == UNKNOWN


def test_what_is_counted_is_the_model_that_ran(chats: Deployment) -> None:
    chats.reset()
    chats.ask("/v1/completions", **BODIES["/v1/completions"], model="gpt-4o")
    assert len(chats.engines["writer"].received) == 1
    lines = chats.http.get("/metrics").text.splitlines()
    assert not [line for line in lines if "gpt-4o" in line]


def test_a_default_model_answers_who_names_none_of_several_and_teis_clients(
    builder: DeploymentBuilder,
) -> None:
    deployment = builder.open(config_of(builder, "embedder"))
    assert outcome(deployment.post("/v1/rerank", BODIES["/v1/rerank"])) == "embedder"
    for path in ("/embed", "/", "/tokenize"):
        for name in ("nobody", None):
            assert deployment.post(path, {"inputs": "a", "model": name}).status_code == 200
    received = [len(engine.received) for engine in deployment.engines.values()]
    assert received == [0, 5, 0]


async def test_lines_of_batches_are_answered_likewise(builder: DeploymentBuilder) -> None:
    config = config_of(builder, "chat")
    builder.open(config)
    answers: dict[int, Answer] = {}
    lines = [
        Line(index, "", url, json.dumps(body | {"model": "gpt-4o"}).encode())
        for index, (url, body) in enumerate(BODIES.items())
    ]
    async with engine_backend(unattended(config, config.models)) as backend:
        await backend.answer(lines, lambda line, answer: answers.update({line.index: answer}))
    assert [answers[index].status for index in sorted(answers)] == [200, 200, 404, 404]
    assert json.loads(answers[0].body)["model"] == "writer"
