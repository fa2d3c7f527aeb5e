"""llama-index-postprocessor-cohere-rerank."""

import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

QUERY = "What do pandas eat?"


@pytest.fixture
def nodes(documents):
    return [NodeWithScore(node=TextNode(text=text)) for text in documents]


def test_rerank(daemon, documents, nodes):
    rerank = CohereRerank(
        model=daemon.embedder, base_url=daemon.url, api_key=daemon.key, top_n=2, max_retries=1
    )
    best = rerank.postprocess_nodes(nodes, query_str=QUERY)
    assert best[0].node.text == documents[1]
    assert len(best) == 2


def test_quick_start(daemon, documents, nodes, monkeypatch):
    """The documentation's program, with the base URL."""
    monkeypatch.setenv("COHERE_API_KEY", daemon.key)
    best = CohereRerank(top_n=2, base_url=daemon.url).postprocess_nodes(nodes, query_str=QUERY)
    assert best[0].node.text == documents[1]
