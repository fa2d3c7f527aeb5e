"""litellm: the daemon as any of the providers whose forms it speaks."""

import os

import pytest

# It would otherwise ask the internet for prices while it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

QUERY = "What do pandas eat?"
MESSAGES = [{"role": "user", "content": "What is a file?"}]


@pytest.fixture(scope="module")
def access(daemon):
    return {"api_base": f"{daemon.url}/v1", "api_key": daemon.key, "num_retries": 0}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_completion(provider, daemon, access):
    asked = {"model": f"{provider}/{daemon.generator}", "messages": MESSAGES, "max_tokens": 8}
    whole = litellm.completion(**asked, temperature=0, **access)
    text = whole.choices[0].message.content
    assert text
    pieces = list(litellm.completion(**asked, temperature=0, stream=True, **access))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


def test_text_completion(daemon, access):
    answer = litellm.text_completion(
        model=f"text-completion-openai/{daemon.generator}", prompt="The function", max_tokens=8,
        **access,
    )  # fmt: skip
    assert answer.choices[0].text


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_embedding(provider, daemon, access, documents):
    answer = litellm.embedding(
        model=f"{provider}/{daemon.embedder}", input=documents, encoding_format="float", **access
    )
    assert len(answer.data) == len(documents)


def test_jina_embedding(daemon, access, documents):
    answer = litellm.embedding(model=f"jina_ai/{daemon.embedder}", input=documents, **access)
    assert len(answer.data) == len(documents)


def test_voyage_embedding(daemon, documents):
    """Its `api_base` is the whole address."""
    answer = litellm.embedding(
        model=f"voyage/{daemon.embedder}", input=documents, api_key=daemon.key,
        api_base=f"{daemon.url}/v1/embeddings",
    )  # fmt: skip
    assert len(answer.data) == len(documents)


@pytest.mark.parametrize(
    ("provider", "base"),
    [
        ("cohere", ""),
        ("cohere", "/v1/rerank"),
        ("cohere", "/v2/rerank"),
        ("jina_ai", ""),
        ("jina_ai", "/v1/rerank"),
        ("voyage", "/v1"),
        ("hosted_vllm", ""),
        ("huggingface", ""),
    ],
)
def test_rerank(provider, base, daemon, documents):
    answer = litellm.rerank(
        model=f"{provider}/{daemon.embedder}", query=QUERY, documents=documents, top_n=2,
        api_base=daemon.url + base, api_key=daemon.key,
    )  # fmt: skip
    assert answer.results[0]["index"] == 1
    if provider != "huggingface":  # TEI has no top_n
        assert len(answer.results) == 2


def test_rerank_returns_documents(daemon, documents):
    answer = litellm.rerank(
        model=f"cohere/{daemon.embedder}", query=QUERY, documents=documents, api_key=daemon.key,
        return_documents=True, api_base=f"{daemon.url}/v1/rerank",
    )  # fmt: skip
    assert answer.results[0]["document"]["text"] == documents[1]


def test_infinity_reranks(daemon, documents):
    """Its documents are texts, not objects as here: they have to be left out."""
    answer = litellm.rerank(
        model=f"infinity/{daemon.embedder}", query=QUERY, documents=documents, api_key=daemon.key,
        return_documents=False, api_base=daemon.url,
    )  # fmt: skip
    assert answer.results[0]["index"] == 1


def test_errors(daemon, access):
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(
            model=f"openai/{daemon.generator}", messages=MESSAGES, temperature=-1, **access
        )
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/nobody", messages=MESSAGES, **access)


def test_quick_start(daemon, monkeypatch):
    """The readme's programs as they are: the environment says where."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)
    monkeypatch.setenv("COHERE_API_BASE", f"{daemon.url}/v2/rerank")
    monkeypatch.setenv("COHERE_API_KEY", daemon.key)
    messages = [{"content": "Hello, how are you?", "role": "user"}]
    whole = litellm.completion(model="openai/gpt-4o", messages=messages)
    assert whole.choices[0].finish_reason in ("stop", "length")
    pieces = litellm.completion(model="openai/gpt-4o", messages=messages, stream=True)
    assert list(pieces)[-1].choices[0].finish_reason in ("stop", "length")
    embedded = litellm.embedding(
        model="text-embedding-ada-002", input=["good morning from litellm"]
    )
    assert len(embedded.data) == 1
    ranked = litellm.rerank(
        model="cohere/rerank-english-v3.0",
        query="What is the capital of the United States?",
        documents=["Carson City is in Nevada.", "Washington, D.C. is the United States' capital."],
        top_n=3,
    )
    assert ranked.results[0]["index"] == 1
