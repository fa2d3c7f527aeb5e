"""The SDKs people use, with nothing changed but the base URL."""

import cohere
import httpx
import openai
import pytest


def test_openai_completion(client, say):
    say(" world")
    completion = client.completions.create(model="writer", prompt="Hello", logprobs=1)
    assert completion.choices[0].text == " world"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == 5
    assert completion.choices[0].logprobs.token_logprobs[0] == -0.5


def test_openai_stream(client, say):
    say("The quick brown fox")
    chunks = list(
        client.completions.create(
            model="writer", prompt="a", stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "The quick brown fox"
    assert chunks[-1].usage.completion_tokens > 4


def test_openai_stream_that_fails(client, deployment, say):
    say("The quick brown fox")
    deployment.engines["writer"].script.fail_after = 1
    deployment.engines["writer"].script.step_seconds = 0.01
    with pytest.raises(openai.APIError, match="no finite result"):
        list(client.completions.create(model="writer", prompt="a", stream=True))


def test_openai_embeddings(client):
    # The SDK asks for base64 and decodes it itself.
    answer = client.embeddings.create(model="embedder", input=["a", "b"])
    plain = client.embeddings.create(model="embedder", input=["a", "b"], encoding_format="float")
    assert [entry.embedding for entry in answer.data] == [entry.embedding for entry in plain.data]


def test_openai_models(client):
    assert [model.id for model in client.models.list()] == ["writer", "embedder", "ranker"]


def test_openai_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="writer", prompt="a", max_tokens=-1)
    assert bad.value.param == "max_tokens"


def test_cohere_rerank(deployment):
    with httpx.Client() as http:
        client = cohere.Client(api_key="none", base_url=deployment.api.url, httpx_client=http)
        answer = client.rerank(
            model="ranker", query="red wine", documents=["apples", "red wine"], top_n=1
        )
    assert [(r.index, r.relevance_score) for r in answer.results] == [(1, 1.0)]
