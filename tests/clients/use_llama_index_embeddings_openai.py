"""llama-index-embeddings-openai."""

import pytest
from llama_index.embeddings.openai import OpenAIEmbedding


def test_embeddings(daemon, documents):
    embedding = OpenAIEmbedding(
        model_name=daemon.embedder, api_base=f"{daemon.url}/v1", api_key=daemon.key, max_retries=0
    )
    vectors = embedding.get_text_embedding_batch(documents)
    assert len(vectors) == len(documents)
    assert embedding.get_query_embedding(documents[0]) == pytest.approx(vectors[0], abs=1e-5)


def test_quick_start(daemon, documents, monkeypatch):
    """The documentation's program as it is: the environment says where."""
    monkeypatch.setenv("OPENAI_API_BASE", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)
    assert len(OpenAIEmbedding().get_text_embedding(documents[0])) == 384
