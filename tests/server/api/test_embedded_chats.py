"""`messages` in `/v1/embeddings`: what the chat template makes of them is the one input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.messages import Tokenization
from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.chat_client import HELLO
from tests.server.chat_templates import write_template
from tests.server.conftest import Deployment, own_builder
from tests.server.fake_engine import vector_of
from tests.server.support import server_config, with_model
from workers.contract.model_config import EmbeddingConfig

PATH = "/v1/embeddings"
TEMPLATE = (
    "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


@pytest.fixture(scope="module")
def open_embedder(tokenizer: Tokenizer) -> Iterator[Deployment]:
    """An embedder with a chat template, and a prompt that texts get by default."""
    prompts = EmbeddingConfig(prompts={"query": "Q: "}, default_prompt_name="query")
    with own_builder(tokenizer) as builder:
        served = builder.model("embedder", "embed")
        write_template(Path(served.path), TEMPLATE)
        yield builder.open(server_config(with_model(served, embedding=prompts)))


@pytest.fixture
def embedder(open_embedder: Deployment) -> Deployment:
    open_embedder.reset()
    return open_embedder


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "<user>Hi</s><assistant>Ho</s>"),
        ({"add_generation_prompt": True}, "<user>Hi</s><assistant>Ho</s><assistant>"),
        ({"continue_final_message": True}, "<user>Hi</s><assistant>Ho"),
        ({"chat_template_kwargs": {"mood": "Calm. "}}, "Calm. <user>Hi</s><assistant>Ho</s>"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/invocations"])
def test_their_prompt_is_embedded_as_it_is(embedder: Deployment, path, options, text) -> None:
    body = embedder.ask(path, messages=TALK, **options)
    (entry,) = body["data"]
    assert entry["embedding"] == pytest.approx(vector_of(text, 8).tolist(), abs=1e-6)
    job = embedder.job("embedder")
    assert job.texts == [text]
    assert job.tokenization == Tokenization(add_special_tokens=False)


def test_special_tokens_only_if_asked_for_and_cut_if_asked_for(embedder: Deployment) -> None:
    asked: dict[str, Any] = {"add_special_tokens": True, "truncate_prompt_tokens": 4}
    embedder.ask(PATH, messages=TALK, **asked)
    expected = Tokenization(add_special_tokens=True, truncate_to=4)
    assert embedder.job("embedder").tokenization == expected


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "input", "this or `messages` is required"),
        ({"messages": TALK, "input": "a"}, "input", "not together with messages"),
        ({"messages": TALK, "prompt_name": "query"}, "prompt_name", "not together with messages"),
        ({"messages": TALK, "input_type": "query"}, "input_type", "not together with messages"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt", "only with"),
        ({"input": "a", "continue_final_message": True}, "continue_final_message", "only with"),
        ({"input": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "only with"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
    ],
)
def test_what_is_wrong_is_named(embedder: Deployment, fields, param, reason) -> None:
    error = embedder.refusal(PATH, **fields)
    assert error["param"] == param
    assert reason in error["message"]


def test_a_model_without_template_takes_none(deployment: Deployment) -> None:
    error = deployment.refusal(PATH, model="embedder", messages=HELLO)
    assert error["param"] == "model"
    assert "chat template" in error["message"]
