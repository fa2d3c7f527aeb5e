"""cohere: embedding and reranking, with both of its clients, and chat with the newer."""

import asyncio
import json

import cohere
import pytest

QUERY = "What do pandas eat?"
MESSAGES = [{"role": "user", "content": "What does it return?"}]


@pytest.fixture(scope="module", params=[cohere.Client, cohere.ClientV2])
def client(request, daemon):
    return request.param(api_key=daemon.key, base_url=daemon.url)


def test_rerank(client, daemon, documents):
    answer = client.rerank(model=daemon.embedder, query=QUERY, documents=documents, top_n=2)
    assert answer.results[0].index == 1
    assert len(answer.results) == 2
    assert answer.results[0].relevance_score > answer.results[1].relevance_score
    assert answer.id
    assert answer.meta.billed_units.search_units == 1
    assert answer.meta.api_version.version in ("1", "2")


def test_rerank_cuts_documents(client, daemon, documents):
    if isinstance(client, cohere.ClientV2):
        answer = client.rerank(
            model=daemon.embedder, query=QUERY, documents=["word " * 300, *documents],
            max_tokens_per_doc=64,
        )  # fmt: skip
        assert len(answer.results) == 4
    else:
        answer = client.rerank(
            model=daemon.embedder, query=QUERY, documents=[{"text": text} for text in documents],
            return_documents=True,
        )  # fmt: skip
        assert answer.results[0].document.text == documents[1]


def test_embed(client, daemon, documents):
    kinds = ["float", "int8", "ubinary"]
    answer = client.embed(
        model=daemon.embedder, texts=documents, input_type="search_document", embedding_types=kinds
    )
    assert answer.response_type == "embeddings_by_type"
    assert answer.texts == documents
    assert [len(row) for row in answer.embeddings.float_] == [384] * len(documents)
    assert [len(row) for row in answer.embeddings.ubinary] == [48] * len(documents)
    assert all(max(map(abs, row)) == 127 for row in answer.embeddings.int8)
    assert answer.meta.billed_units.input_tokens > 0


def test_embed_floats(daemon, documents):
    client = cohere.Client(api_key=daemon.key, base_url=daemon.url)
    answer = client.embed(model=daemon.embedder, texts=documents, input_type="search_document")
    assert answer.response_type == "embeddings_floats"
    assert [len(row) for row in answer.embeddings] == [384] * len(documents)


def test_embed_cuts_texts(daemon):
    client = cohere.ClientV2(api_key=daemon.key, base_url=daemon.url)
    inputs = [{"content": [{"type": "text", "text": "word " * 600}]}]
    asked = {"model": daemon.embedder, "input_type": "search_query", "inputs": inputs}
    answer = client.embed(**asked)
    assert len(answer.embeddings.float_) == 1
    with pytest.raises(cohere.BadRequestError) as caught:
        client.embed(**asked, truncate="NONE")
    assert caught.value.body["error"]["param"] == "inputs[0]"


def test_chat(daemon):
    co = cohere.ClientV2(api_key=daemon.key, base_url=daemon.url)
    asked = {"model": daemon.generator, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    answer = co.chat(**asked, logprobs=True)
    assert answer.finish_reason == "MAX_TOKENS"
    assert answer.message.role == "assistant"
    assert answer.usage.tokens.output_tokens == len(answer.logprobs) == 8
    events = list(co.chat_stream(**asked))
    types = [event.type for event in events]
    assert types[:2] == ["message-start", "content-start"]
    assert types[-2:] == ["content-end", "message-end"]
    deltas = [event.delta.message.content.text for event in events[2:-2]]
    assert "".join(deltas) == answer.message.content[0].text
    assert events[-1].delta.finish_reason == "MAX_TOKENS"
    assert events[-1].delta.usage.tokens == answer.usage.tokens
    stopped = co.chat(**asked, stop_sequences=[" "])
    assert stopped.finish_reason == "STOP_SEQUENCE"


def test_chat_by_a_schema(daemon):
    co = cohere.ClientV2(api_key=daemon.key, base_url=daemon.url)
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue"]}}, "required": ["sky"]}
    schema["additionalProperties"] = False
    answer = co.chat(
        model=daemon.generator, messages=MESSAGES, max_tokens=40, temperature=0,
        response_format={"type": "json_object", "json_schema": schema},
    )  # fmt: skip
    assert json.loads(answer.message.content[0].text) == {"sky": "blue"}
    assert answer.finish_reason == "COMPLETE"


def test_chat_without_tools(daemon):
    co = cohere.ClientV2(api_key=daemon.key, base_url=daemon.url)
    with pytest.raises(cohere.BadRequestError) as caught:
        co.chat(model=daemon.generator, messages=MESSAGES, documents=["Water is wet."])
    assert caught.value.body["error"]["param"] == "documents"


def test_errors(client, daemon, documents):
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model=daemon.embedder, query=QUERY, documents=documents, top_n=0)
    assert caught.value.body["error"]["param"] == "top_n"
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="nobody", query=QUERY, documents=documents)


def test_a_wrong_key(daemon, documents):
    client = cohere.ClientV2(api_key="wrong", base_url=daemon.url)
    with pytest.raises(cohere.UnauthorizedError):
        client.rerank(model=daemon.embedder, query=QUERY, documents=documents)


def test_async_client(daemon, documents):
    async def ask():
        async with cohere.AsyncClientV2(api_key=daemon.key, base_url=daemon.url) as client:
            return await client.rerank(model=daemon.embedder, query=QUERY, documents=documents)

    assert asyncio.run(ask()).results[0].index == 1


def test_quick_start(daemon, monkeypatch):
    """The reference's program, with the base URL."""
    monkeypatch.setenv("CO_API_KEY", daemon.key)
    co = cohere.ClientV2(base_url=daemon.url)
    docs = [
        "Carson City is the capital city of the American state of Nevada.",
        "The capital of the Northern Mariana Islands is Saipan.",
        "Washington, D.C. is the capital of the United States. It is a federal district.",
        "Capitalization is the use of a capital letter at the start of a word.",
        "Capital punishment has existed in the United States since before it was a country.",
    ]
    response = co.rerank(
        model="rerank-v3.5",
        query="What is the capital of the United States?",
        documents=docs,
        top_n=3,
    )
    assert response.results[0].index == 2
    assert len(response.results) == 3
