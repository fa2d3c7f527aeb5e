"""langchain-openai: its models, and its embeddings."""

from importlib.util import find_spec
from pathlib import Path

import openai
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings


@pytest.fixture(scope="module")
def access(daemon):
    return {"base_url": f"{daemon.url}/v1", "api_key": daemon.key, "max_retries": 0}


def test_completion(daemon, access):
    llm = OpenAI(model=daemon.generator, max_tokens=8, temperature=0, **access)
    text = llm.invoke("The function returns")
    assert text
    assert "".join(llm.stream("The function returns")) == text


def test_batch(daemon, access):
    llm = OpenAI(model=daemon.generator, max_tokens=4, **access)
    assert all(llm.batch(["The function", "The server"]))


@pytest.fixture(scope="module")
def chat(daemon, access):
    return ChatOpenAI(model=daemon.generator, max_tokens=8, temperature=0, **access)


def test_chat(chat):
    messages = [("system", "You are a helpful assistant."), ("human", "What is a file?")]
    answer = chat.invoke(messages)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 8
    assert "".join(piece.content for piece in chat.stream(messages)) == answer.content


def test_chain(chat):
    prompt = ChatPromptTemplate.from_messages([("human", "Tell me about {topic}.")])
    assert (prompt | chat).invoke({"topic": "files"}).content


def test_structured_output(daemon, access):
    from pydantic import BaseModel

    class Answer(BaseModel):
        right: bool

    chat = ChatOpenAI(model=daemon.generator, max_tokens=60, **access)
    answer = chat.with_structured_output(Answer, method="json_schema").invoke("Is it right?")
    assert isinstance(answer, Answer)


def test_embeddings(daemon, access, documents):
    embeddings = OpenAIEmbeddings(model=daemon.embedder, check_embedding_ctx_length=False, **access)
    vectors = embeddings.embed_documents(documents)
    assert len(vectors) == len(documents)
    asked = embeddings.embed_query(documents[0])
    assert asked == pytest.approx(vectors[0], abs=1e-5)


def test_embeddings_with_its_default_are_of_other_words(daemon, access, documents, monkeypatch):
    """It sends the ids of OpenAI's tokenizer, which are other words here, or none."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tiktoken_files()))
    embeddings = OpenAIEmbeddings(model=daemon.embedder, **access)
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        embeddings.embed_documents(["Interoperability of heterogeneous microservices 漢字"])
    right = OpenAIEmbeddings(model=daemon.embedder, check_embedding_ctx_length=False, **access)
    assert embeddings.embed_query("the cat") != pytest.approx(right.embed_query("the cat"), abs=0.1)


def tiktoken_files() -> Path:
    """OpenAI's tokenizer, which tiktoken would otherwise fetch from the internet."""
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"


def test_quick_start(daemon, monkeypatch):
    """The documentation's programs as they are: the environment says where."""
    monkeypatch.setenv("OPENAI_API_BASE", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)
    llm = ChatOpenAI(model="gpt-4o", temperature=0, max_tokens=None, timeout=None, max_retries=2)
    messages = [
        ("system", "You are a helpful translator. Translate the user sentence to French."),
        ("human", "I love programming."),
    ]
    assert llm.invoke(messages).content
    assert OpenAI(model="gpt-3.5-turbo-instruct").invoke("Hello how are you?") is not None
