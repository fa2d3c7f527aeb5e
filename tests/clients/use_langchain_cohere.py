"""langchain-cohere: reranking."""

from langchain_cohere import CohereRerank
from langchain_core.documents import Document

QUERY = "What do pandas eat?"


def test_rerank(daemon, documents):
    rerank = CohereRerank(
        model=daemon.embedder, base_url=daemon.url, cohere_api_key=daemon.key, top_n=2
    )
    best = rerank.compress_documents([Document(text) for text in documents], QUERY)
    assert best[0].page_content == documents[1]
    assert len(best) == 2


def test_quick_start(daemon, documents, monkeypatch):
    """The documentation's program, with the base URL."""
    monkeypatch.setenv("COHERE_API_KEY", daemon.key)
    rerank = CohereRerank(model="rerank-english-v3.0", base_url=daemon.url)
    best = rerank.compress_documents([Document(text) for text in documents], QUERY)
    assert best[0].page_content == documents[1]
