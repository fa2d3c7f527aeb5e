"""Which model of a running server is measured, and by which words."""

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.http_client import Address, HTTPClient
from server.bench import words
from server.bench.measurement import BenchError
from server.bench.running_model import only_model, single_token_words
from server.bench.workloads import HTTP, HTTPCase
from tests.server.canned_server import CannedServer, answer
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

CASES = {case.name: case for case in HTTP}
GENERATION, EMBEDDINGS = CASES["http-gen-32x32"], CASES["http-emb-1x32"]


def client_of(url: str) -> closing[HTTPClient]:
    return closing(HTTPClient(Address.of(url, None)))


@pytest.fixture
async def client(deployment: Deployment) -> AsyncIterator[HTTPClient]:
    """Asks a daemon with a generator, an embedder and a reranker."""
    with client_of(deployment.api.url) as client:
        yield client


@pytest.mark.parametrize(("case", "name"), [(GENERATION, "writer"), (EMBEDDINGS, "embedder")])
async def test_the_only_model_for_a_case(client: HTTPClient, case: HTTPCase, name: str) -> None:
    assert await only_model(client, case) == name


async def test_models_that_would_do_are_named(builder: DeploymentBuilder) -> None:
    generators = (builder.model(name, "generate") for name in ("writer", "poet"))
    deployment = builder.open(server_config(*generators))
    with client_of(deployment.api.url) as client:
        with pytest.raises(BenchError, match=r"name one of the models: writer, poet .*--model"):
            await only_model(client, GENERATION)
        with pytest.raises(BenchError, match="no model of this daemon serves /v1/embeddings"):
            await only_model(client, EMBEDDINGS)


async def test_the_only_model_that_is_listed_is_not_asked_for_a_case(
    builder: DeploymentBuilder,
) -> None:
    deployment = builder.open(server_config(builder.model("writer", "generate")))
    with client_of(deployment.api.url) as client:
        assert await only_model(client, EMBEDDINGS) == "writer"


async def test_words_are_one_token_each_to_the_server(
    client: HTTPClient, tokenizer: Tokenizer
) -> None:
    found = await single_token_words(client, "writer")
    assert {"the", "and"} < set(found)
    assert found == words.single_token_words(tokenizer)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (answer(b"", "404 Not Found"), r"/tokenize: status 404:  \(asked as --tokenizer is"),
        (answer(b'{"tokens": []}'), r"/tokenize: an answer that cannot be read .*--tokenizer"),
        (answer(b'{"count": 2}'), "no common lower-case word is one token of m"),
    ],
)
async def test_a_server_that_makes_no_words(said: bytes, message: str) -> None:
    with (
        CannedServer([said]) as server,
        client_of(server.url) as client,
        pytest.raises(BenchError, match=message),
    ):
        await single_token_words(client, "m")
