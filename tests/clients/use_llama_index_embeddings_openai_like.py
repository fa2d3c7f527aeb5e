"""llama-index-embeddings-openai-like."""

import pytest
from llama_index.embeddings.openai_like import OpenAILikeEmbedding


def test_embeddings(daemon, documents):
    embedding = OpenAILikeEmbedding(
        model_name=daemon.embedder, api_base=f"{daemon.url}/v1", api_key=daemon.key, max_retries=0
    )
    vectors = embedding.get_text_embedding_batch(documents)
    assert len(vectors) == len(documents)
    assert embedding.get_query_embedding(documents[0]) == pytest.approx(vectors[0], abs=1e-5)
