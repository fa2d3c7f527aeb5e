"""`messages` in place of `input`: what the chat template makes of them is the one input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.messages import Tokenization
from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.api.conftest import LABELS
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


FORMS = (
    ("embedder", PATH),
    ("embedder", "/pooling"),
    ("embedder", "/invocations"),
    ("sorter", "/v1/classify"),
    ("sorter", "/pooling"),
    ("sorter", "/invocations"),
)


@pytest.fixture(scope="module")
def open_readers(tokenizer: Tokenizer) -> Iterator[Deployment]:
    """An embedder, which puts a prompt before texts by default, and a classifier; both have a chat
    template."""
    prompts = EmbeddingConfig(prompts={"query": "Q: "}, default_prompt_name="query")
    with own_builder(tokenizer) as builder:
        embedder = with_model(builder.model("embedder", "embed"), embedding=prompts)
        models = (embedder, builder.model("sorter", "classify", LABELS))
        for served in models:
            write_template(Path(served.path), TEMPLATE)
        yield builder.open(server_config(*models))


@pytest.fixture
def readers(open_readers: Deployment) -> Deployment:
    open_readers.reset()
    return open_readers


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "<user>Hi</s><assistant>Ho</s>"),
        ({"add_generation_prompt": True}, "<user>Hi</s><assistant>Ho</s><assistant>"),
        ({"continue_final_message": True}, "<user>Hi</s><assistant>Ho"),
        ({"chat_template_kwargs": {"mood": "Calm. "}}, "Calm. <user>Hi</s><assistant>Ho</s>"),
    ],
)
@pytest.mark.parametrize(("model", "path"), FORMS)
def test_their_prompt_is_read_as_it_is(readers: Deployment, model, path, options, text) -> None:
    (entry,) = readers.ask(path, model=model, messages=TALK, **options)["data"]
    assert entry["index"] == 0
    job = readers.job(model)
    assert job.texts == [text]
    assert job.tokenization == Tokenization(add_special_tokens=False)


def test_their_vector_is_that_of_their_prompt(readers: Deployment) -> None:
    (entry,) = readers.ask(PATH, model="embedder", messages=TALK)["data"]
    expected = vector_of("<user>Hi</s><assistant>Ho</s>", 8).tolist()
    assert entry["embedding"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("model", "path"), FORMS)
def test_special_tokens_only_if_asked_for_and_cut_if_asked_for(
    readers: Deployment, model, path
) -> None:
    asked: dict[str, Any] = {"add_special_tokens": True, "truncate_prompt_tokens": 4}
    readers.ask(path, model=model, messages=TALK, **asked)
    expected = Tokenization(add_special_tokens=True, truncate_to=4)
    assert readers.job(model).tokenization == expected


@pytest.mark.parametrize(("model", "path"), FORMS)
def test_special_tokens_of_texts_can_be_left_out(readers: Deployment, model, path) -> None:
    readers.ask(path, model=model, input="a b", add_special_tokens=False)
    assert readers.job(model).tokenization == Tokenization(add_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "input", "this or `messages` is required"),
        ({"messages": TALK, "input": "a"}, "input", "not together with messages"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt", "only with"),
        ({"input": "a", "continue_final_message": True}, "continue_final_message", "only with"),
        ({"input": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "only with"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
    ],
)
@pytest.mark.parametrize(("model", "path"), [FORMS[0], FORMS[1], FORMS[3], FORMS[4]])
def test_what_is_wrong_is_named(readers: Deployment, model, path, fields, param, reason) -> None:
    error = readers.refusal(path, model=model, **fields)
    assert error["param"] == param
    assert reason in error["message"]


@pytest.mark.parametrize("field", ["prompt_name", "input_type"])
def test_no_prompt_comes_before_a_chat(readers: Deployment, field) -> None:
    error = readers.refusal(PATH, model="embedder", messages=TALK, **{field: "query"})
    assert (error["param"], "not together with messages" in error["message"]) == (field, True)


def test_a_model_without_template_takes_none(deployment: Deployment) -> None:
    error = deployment.refusal(PATH, model="embedder", messages=HELLO)
    assert error["param"] == "model"
    assert "chat template" in error["message"]
