"""`/tokenize` of chat messages."""

from collections.abc import Iterator

import pytest

from tests.server.chat_templates import CHATML, LLAMA3, chat_deployment
from tests.server.conftest import Deployment

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": LLAMA3, "chatml": CHATML}) as deployment:
        yield deployment


def tokens(deployment: Deployment, **fields) -> list[int]:
    response = deployment.post("/tokenize", {"model": "writer", **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 2048
    return body["tokens"]


def text(deployment: Deployment, **fields) -> str:
    body = {"model": fields.get("model", "writer"), "tokens": tokens(deployment, **fields)}
    return deployment.post("/detokenize", body).json()["prompt"]


def test_messages_come_to_what_chat_sends_to_the_engine(deployment):
    fields = {"model": "writer", "messages": HELLO}
    assert deployment.post("/v1/chat/completions", {**fields, "max_tokens": 1}).status_code == 200
    (job,) = deployment.engines["writer"].received
    assert tokens(deployment, messages=HELLO) == tokens(
        deployment, prompt=job.texts[0], add_special_tokens=False
    )
    assert text(deployment, messages=HELLO) == job.texts[0]


def test_the_templates_bos_is_the_only_one_unless_asked_for(deployment):
    ids = tokens(deployment, messages=HELLO)
    assert ids[0] == 0
    assert 0 not in ids[1:]
    assert tokens(deployment, messages=HELLO, add_special_tokens=False) == ids
    assert tokens(deployment, messages=HELLO, add_special_tokens=True) == [0, *ids]


def test_the_options_of_chat(deployment):
    assert text(deployment, messages=HELLO, add_generation_prompt=False).endswith("<|eot_id|>[1]")
    talk = [*HELLO, {"role": "assistant", "content": "So"}]
    continued = text(deployment, model="chatml", messages=talk, continue_final_message=True)
    assert continued.endswith("assistant\nSo")
    quiet = {"enable_thinking": False}
    assert text(deployment, model="chatml", messages=HELLO, chat_template_kwargs=quiet).endswith(
        "<think></think>"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "a", "messages": HELLO}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": HELLO, "tools": [{}]}, "tools"),
    ],
)
def test_fields_at_fault(deployment, fields, param):
    response = deployment.post("/tokenize", {"model": "writer", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("neutral", [{"tools": []}, {"chat_template": None}])
def test_neutral_options(deployment, neutral):
    assert tokens(deployment, messages=HELLO, **neutral) == tokens(deployment, messages=HELLO)
