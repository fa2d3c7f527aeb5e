"""`/tokenize` of texts and of chat messages, and `/detokenize`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.chat_client import HELLO
from tests.server.conftest import Deployment

TO_GO_ON = [*HELLO, {"role": "assistant", "content": "So"}]


def tokens(deployment: Deployment, **fields) -> list[int]:
    body = deployment.ask("/tokenize", **{"model": "writer"} | fields)
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 2048
    return body["tokens"]


def text_of(deployment: Deployment, tokens: list[int]) -> str:
    return deployment.ask("/detokenize", model="writer", tokens=tokens)["prompt"]


@settings(max_examples=15)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_there_and_back(deployment, text):
    assert text_of(deployment, tokens(deployment, prompt=text, add_special_tokens=False)) == text


def test_special_tokens_are_there_unless_declined(deployment):
    whole = tokens(deployment, prompt="Hello")
    assert whole[0] == 0
    assert tokens(deployment, prompt="Hello", add_special_tokens=False) == whole[1:]
    assert text_of(deployment, whole) == "<s>Hello"


def test_spellings_if_asked_for(deployment, tokenizer):
    body = {"model": "writer", "prompt": "naïve 漢"}
    plain = deployment.ask("/tokenize", **body)
    spelled = deployment.ask("/tokenize", **body, return_token_strs=True)
    assert spelled == {**plain, "token_strs": tokenizer.raw.encode(body["prompt"]).tokens}
    assert plain["token_strs"] is None


def test_messages_come_to_what_chat_sends_to_the_engine(chats):
    chats.ask("/v1/chat/completions", model="writer", messages=HELLO, max_tokens=1)
    (text,) = chats.job("writer").texts
    ids = tokens(chats, messages=HELLO)
    assert ids == tokens(chats, prompt=text, add_special_tokens=False)
    assert text_of(chats, ids) == text


def test_the_templates_bos_is_the_only_one_unless_asked_for(chats):
    ids = tokens(chats, messages=HELLO)
    assert ids[0] == 0
    assert 0 not in ids[1:]
    assert tokens(chats, messages=HELLO, add_special_tokens=False) == ids
    assert tokens(chats, messages=HELLO, add_special_tokens=True) == [0, *ids]


@pytest.mark.parametrize(
    ("model", "fields", "end"),
    [
        ("writer", {"add_generation_prompt": False}, "<|eot_id|>[1]"),
        ("chatml", {"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>"),
        ("chatml", {"messages": TO_GO_ON, "continue_final_message": True}, "assistant\nSo"),
    ],
)
def test_the_options_of_chat(chats, model, fields, end):
    ids = tokens(chats, **{"model": model, "messages": HELLO} | fields)
    assert text_of(chats, ids).endswith(end)
