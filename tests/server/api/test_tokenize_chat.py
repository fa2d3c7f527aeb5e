"""`/tokenize` of chat messages."""

from collections.abc import Iterator

import pytest

from tests.server.chat_templates import CHATML, LLAMA3, chat_house
from tests.server.conftest import House

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def house(tokenizer) -> Iterator[House]:
    with chat_house(tokenizer, {"writer": LLAMA3, "chatml": CHATML}) as house:
        yield house


def tokens(house: House, **fields) -> list[int]:
    response = house.post("/tokenize", {"model": "writer", **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 2048
    return body["tokens"]


def text(house: House, **fields) -> str:
    body = {"model": fields.get("model", "writer"), "tokens": tokens(house, **fields)}
    return house.post("/detokenize", body).json()["prompt"]


def test_messages_come_to_what_chat_sends_to_the_engine(house):
    fields = {"model": "writer", "messages": HELLO}
    assert house.post("/v1/chat/completions", {**fields, "max_tokens": 1}).status_code == 200
    (job,) = house.engines["writer"].received
    assert tokens(house, messages=HELLO) == tokens(
        house, prompt=job.texts[0], add_special_tokens=False
    )
    assert text(house, messages=HELLO) == job.texts[0]


def test_the_templates_bos_is_the_only_one_unless_asked_for(house):
    ids = tokens(house, messages=HELLO)
    assert ids[0] == 0
    assert 0 not in ids[1:]
    assert tokens(house, messages=HELLO, add_special_tokens=False) == ids
    assert tokens(house, messages=HELLO, add_special_tokens=True) == [0, *ids]


def test_the_options_of_chat(house):
    assert text(house, messages=HELLO, add_generation_prompt=False).endswith("<|eot_id|>[1]")
    talk = [*HELLO, {"role": "assistant", "content": "So"}]
    continued = text(house, model="chatml", messages=talk, continue_final_message=True)
    assert continued.endswith("assistant\nSo")
    quiet = {"enable_thinking": False}
    assert text(house, model="chatml", messages=HELLO, chat_template_kwargs=quiet).endswith(
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
def test_fields_at_fault(house, fields, param):
    response = house.post("/tokenize", {"model": "writer", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("neutral", [{"tools": []}, {"chat_template": None}])
def test_neutral_options(house, neutral):
    assert tokens(house, messages=HELLO, **neutral) == tokens(house, messages=HELLO)
