"""llama-index: its pieces for OpenAI and for Cohere."""

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.cohere_rerank import CohereRerank

QUERY = "What do pandas eat?"


@pytest.fixture(scope="module")
def access(daemon):
    return {"api_base": f"{daemon.url}/v1", "api_key": daemon.key, "max_retries": 0}


@pytest.fixture(scope="module", params=[False, True])
def llm(request, daemon, access):
    return OpenAILike(
        model=daemon.generator, is_chat_model=request.param, max_tokens=8, temperature=0,
        context_window=1024, **access,
    )  # fmt: skip


def test_complete(llm):
    text = llm.complete("The function returns").text
    assert text
    assert [piece.text for piece in llm.stream_complete("The function returns")][-1] == text


def test_chat(llm):
    messages = [ChatMessage(role="user", content="What is a file?")]
    text = llm.chat(messages).message.content
    assert text
    assert [piece.message.content for piece in llm.stream_chat(messages)][-1] == text


def test_openai_class_knows_only_models_of_openai(daemon, access):
    with pytest.raises(ValueError, match="Unknown model"):
        OpenAI(model=daemon.generator, **access).complete("The function returns")


@pytest.mark.parametrize("kind", [OpenAIEmbedding, OpenAILikeEmbedding])
def test_embeddings(kind, daemon, access, documents):
    embedding = kind(model_name=daemon.embedder, **access)
    vectors = embedding.get_text_embedding_batch(documents)
    assert len(vectors) == len(documents)
    assert embedding.get_query_embedding(documents[0]) == pytest.approx(vectors[0], abs=1e-5)


def test_rerank(daemon, documents):
    rerank = CohereRerank(
        model=daemon.embedder, base_url=daemon.url, api_key=daemon.key, top_n=2, max_retries=1
    )
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in documents]
    best = rerank.postprocess_nodes(nodes, query_str=QUERY)
    assert best[0].node.text == documents[1]
    assert len(best) == 2


def test_quick_start(daemon, documents, monkeypatch):
    """The documentation's programs; Cohere's piece has to be told the base URL."""
    monkeypatch.setenv("OPENAI_API_BASE", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)
    monkeypatch.setenv("COHERE_API_KEY", daemon.key)
    assert OpenAI(model="gpt-4o-mini").complete("Paul Graham is ").text is not None
    messages = [
        ChatMessage(role="system", content="You are a pirate with a colorful personality"),
        ChatMessage(role="user", content="What is your name"),
    ]
    assert OpenAI(model="gpt-4o-mini").chat(messages).message.role == "assistant"
    assert len(OpenAIEmbedding().get_text_embedding(documents[0])) == 384
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in documents]
    best = CohereRerank(top_n=2, base_url=daemon.url).postprocess_nodes(nodes, query_str=QUERY)
    assert best[0].node.text == documents[1]
