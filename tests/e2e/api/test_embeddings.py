"""`/v1/embeddings` of a real daemon beside sentence-transformers, in float32."""

import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from server.demo import EMBEDDER_NAME, demo_models
from tests.e2e.daemon import running
from tests.workers.contract.checkpoint.library_folders import change

PROMPTS = {"query": "Represent this question: ", "document": "passage: ", "plain": ""}
TEXTS = ["The cat sat on the mat.", "A kitten rests on a rug.", "Interest rates rose in March."]
LONG = " ".join(f"{number} sheep sleep under the old oak tree," for number in range(80))
MAX_LEN = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo embedder, as a matryoshka model with prompts."""
    folder: Path = tmp_path_factory.mktemp("models") / "embedder"
    shutil.copytree(demo_models()[EMBEDDER_NAME], folder)
    change(folder / "config.json", matryoshka_dimensions=[64, 128])
    settings = {"prompts": PROMPTS, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Generator[openai.OpenAI]:
    with (
        running(str(folder), "--threads", "1") as daemon,
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def embed(client: openai.OpenAI, value: Any, **fields: Any) -> openai.types.CreateEmbeddingResponse:
    return client.embeddings.create(
        model="embedder", input=value, encoding_format="float", extra_body=fields
    )


def vectors_of(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([entry.embedding for entry in answer.data])


@pytest.mark.parametrize(
    ("fields", "prompt_name"),
    [
        ({}, None),
        ({"prompt_name": "query"}, "query"),
        ({"input_type": "search_query"}, "query"),
        ({"prompt_name": "plain"}, "plain"),
    ],
)
def test_prompts(client, reference, fields, prompt_name) -> None:
    expected = reference.encode(TEXTS, prompt_name=prompt_name)
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS, **fields)), expected, atol=1e-5)


def test_the_prompts_of_queries_and_documents(client, reference) -> None:
    queries = vectors_of(embed(client, TEXTS, input_type="query"))
    documents = vectors_of(embed(client, TEXTS, input_type="document"))
    np.testing.assert_allclose(queries, reference.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(documents, reference.encode_document(TEXTS), atol=1e-5)
    assert np.abs(queries - documents).max() > 0.01


@pytest.mark.parametrize("name", ["normalize", "use_activation"])
@pytest.mark.parametrize("size", [64, 384])
def test_vectors_before_normalisation(client, reference, name, size) -> None:
    from sentence_transformers import SentenceTransformer

    *modules, _ = reference
    settings = {"prompts": PROMPTS, "default_prompt_name": "document", "truncate_dim": size}
    expected = SentenceTransformer(modules=modules, device="cpu", **settings).encode(TEXTS)
    assert np.linalg.norm(expected, axis=1).min() > 1.5
    vectors = vectors_of(embed(client, TEXTS, **{name: False, "dimensions": size}))
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    told = httpx.post(
        f"{client.base_url}".replace("/v1/", "/embed"),
        json={"inputs": TEXTS, "normalize": False, "dimensions": size, "prompt_name": "document"},
    )
    assert told.json() == vectors.tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation(client, reference, side) -> None:
    reference.tokenizer.truncation_side = side
    expected = reference.encode([LONG, *TEXTS], prompt_name="plain")
    answer = embed(
        client,
        [LONG, *TEXTS],
        prompt_name="plain",
        truncate_prompt_tokens=-1,
        truncation_side=side,
    )
    np.testing.assert_allclose(vectors_of(answer), expected, atol=1e-5)
    assert answer.data[0].model_extra == {"truncated": True}
    assert [entry.model_extra for entry in answer.data[1:]] == [{}] * 3
    own = [len(reference.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert answer.usage.prompt_tokens == MAX_LEN + sum(own)


def test_a_shorter_truncation(client, reference) -> None:
    ids = reference.tokenizer(TEXTS[0])["input_ids"]
    assert len(ids) > 6
    cut = embed(client, TEXTS[0], prompt_name="plain", truncate_prompt_tokens=6)
    by_hand = embed(client, [[*ids[:5], ids[-1]]])
    assert cut.usage.prompt_tokens == by_hand.usage.prompt_tokens == 6
    np.testing.assert_allclose(vectors_of(cut), vectors_of(by_hand), atol=1e-6)


def test_without_special_tokens(client, reference) -> None:
    ids = reference.tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    bare = embed(client, TEXTS[0], prompt_name="plain", add_special_tokens=False)
    assert bare.usage.prompt_tokens == len(ids)
    np.testing.assert_allclose(vectors_of(bare), vectors_of(embed(client, [ids])), atol=1e-6)


@pytest.mark.parametrize("truncation", [{}, {"truncation": False}])
def test_one_over_long_text_among_a_hundred_is_named(client, reference, truncation) -> None:
    length = len(reference.tokenizer(PROMPTS["document"] + LONG, truncation=False)["input_ids"])
    with pytest.raises(openai.BadRequestError) as raised:
        embed(client, [*["a"] * 61, LONG, *["b"] * 38], **truncation)
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.param == "input[61]"
    assert f"{length} tokens" in raised.value.message
    assert f"at most {MAX_LEN}" in raised.value.message
