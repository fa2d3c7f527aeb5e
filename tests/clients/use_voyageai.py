"""voyageai."""

import asyncio

import pytest
import voyageai

QUERY = "What do pandas eat?"


@pytest.fixture(scope="module")
def client(daemon):
    return voyageai.Client(api_key=daemon.key, base_url=f"{daemon.url}/v1")


def test_embed(client, daemon, documents):
    answer = client.embed(documents, model=daemon.embedder)
    assert len(answer.embeddings) == len(documents)
    assert answer.total_tokens > len(documents)


def test_input_type(client, daemon, documents):
    """A model without prompts of its own embeds queries and documents alike, or says so."""
    plain = client.embed(documents, model=daemon.embedder).embeddings
    typed = client.embed(documents, model=daemon.embedder, input_type="document").embeddings
    assert typed[0] == pytest.approx(plain[0], abs=1e-5)


def test_truncation_is_the_default(client, daemon):
    assert client.embed(["word " * 300], model=daemon.embedder).total_tokens == 256
    with pytest.raises(voyageai.error.InvalidRequestError):
        client.embed(["word " * 300], model=daemon.embedder, truncation=False)


def test_rerank(client, daemon, documents):
    answer = client.rerank(QUERY, documents, model=daemon.embedder, top_k=2)
    assert answer.results[0].index == 1
    assert answer.results[0].document == documents[1]
    assert len(answer.results) == 2
    assert answer.total_tokens > 0


def test_async_client(daemon, documents):
    client = voyageai.AsyncClient(api_key=daemon.key, base_url=f"{daemon.url}/v1")
    answer = asyncio.run(client.rerank(QUERY, documents, model=daemon.embedder))
    assert answer.results[0].index == 1


def test_errors_have_a_message(client, daemon, documents):
    with pytest.raises(voyageai.error.InvalidRequestError, match="top_k"):
        client.rerank(QUERY, documents, model=daemon.embedder, top_k=0)
    with pytest.raises(voyageai.error.AuthenticationError, match="key"):
        voyageai.Client(api_key="wrong", base_url=f"{daemon.url}/v1").embed(["x"], model="x")


def test_quick_start(daemon, monkeypatch):
    """The readme's program, with the base URL."""
    monkeypatch.setenv("VOYAGE_API_KEY", daemon.key)
    vo = voyageai.Client(base_url=f"{daemon.url}/v1")
    documents = [
        "The Mediterranean diet emphasizes fish, olive oil, and vegetables.",
        "Photosynthesis in plants converts light energy into glucose.",
        "Shakespeare's works, like 'Hamlet' and 'A Midsummer Night's Dream,' endure in literature.",
    ]
    assert len(vo.embed(documents, model="voyage-3.5", input_type="document").embeddings) == 3
    reranking = vo.rerank("Which diet has olive oil?", documents, model="rerank-2.5", top_k=3)
    assert reranking.results[0].document == documents[0]
