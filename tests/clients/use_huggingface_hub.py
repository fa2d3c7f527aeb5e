"""huggingface_hub's InferenceClient, pointed at TEI's paths and at OpenAI's."""

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


def client_of(daemon, path):
    return InferenceClient(model=f"{daemon.url}{path}", token=daemon.key)


@pytest.mark.parametrize("path", ["", "/embed"])
def test_feature_extraction(path, daemon, documents):
    client = client_of(daemon, path)
    vectors = client.feature_extraction(documents)
    assert vectors.shape == (3, 384)
    assert (client.feature_extraction(documents[0])[0] - vectors[0]).max() < 1e-5
    cut = client.feature_extraction("word " * 300, truncate=True, truncation_direction="right")
    assert cut.shape == (1, 384)


def test_text_classification(daemon):
    best = client_of(daemon, "/predict").text_classification("What a fine day!")
    assert best.label in {"calm", "glad", "sad"}
    assert 0 < best.score <= 1


def test_sentence_similarity(daemon, documents):
    scores = client_of(daemon, "/similarity").sentence_similarity(
        "Pandas eat bamboo.", other_sentences=documents
    )
    assert max(scores) == scores[1]


def test_chat_completion(daemon):
    client = InferenceClient(base_url=f"{daemon.url}/v1", api_key=daemon.key)
    asked = {"messages": [{"role": "user", "content": "What is a file?"}], "max_tokens": 8}
    whole = client.chat_completion(model=daemon.generator, temperature=0, **asked)
    text = whole.choices[0].message.content
    assert text
    pieces = client.chat_completion(model=daemon.generator, temperature=0, stream=True, **asked)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


def test_errors(daemon):
    with pytest.raises(HfHubHTTPError, match="inputs") as caught:
        client_of(daemon, "/embed").feature_extraction("word " * 300)
    assert caught.value.response.status_code == 413


def test_quick_start(daemon):
    """The guide's programs, with the base URL."""
    client = InferenceClient(base_url=f"{daemon.url}/v1", api_key=daemon.key)
    output = client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": "Count to 10"}], max_tokens=64
    )
    assert output.choices[0].finish_reason in ("stop", "length")
    embedder = InferenceClient(model=daemon.url, token=daemon.key)
    assert embedder.feature_extraction("Hi, who are you?").shape == (1, 384)
