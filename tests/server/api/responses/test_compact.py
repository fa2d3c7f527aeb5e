"""`/v1/responses/compact`: what is kept of a conversation, and how it goes on."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.api.responses.test_responses import PATH, WRITER
from tests.server.chat_client import say_little
from tests.server.chat_templates import MISTRAL, chat_deployment
from tests.server.conftest import Deployment

COMPACT = f"{PATH}/compact"
SUMMARY = "Iron was asked about."
USERS: list[dict[str, Any]] = [
    {"role": "user", "content": "What is iron?"},
    {"role": "user", "content": [{"type": "input_text", "text": "Be brief."}]},
]
CALL = {"type": "function_call", "name": "get", "call_id": "c", "arguments": '{"a": "x"}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "A metal."}


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    models: dict[str, object] = {"writer": WRITER, "alternating": MISTRAL}
    with chat_deployment(tokenizer, models) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def compacted(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    return deployment.ask(COMPACT, **{"model": "writer"} | fields)


def prompt_of(deployment: Deployment, model: str) -> str:
    """That of the last job."""
    (prompt,) = deployment.engines[model].received[-1].texts
    deployment.engines[model].received.clear()
    return prompt


def test_messages_are_kept_and_the_rest_is_in_the_summary(deployment, say):
    say(f"Hm.</think>\n\n{SUMMARY}")
    items = [{"role": "developer", "content": "Speak."}, *USERS, CALL, RESULT]
    answer = compacted(deployment, input=items, instructions="Be good.")
    assert answer["object"] == "response.compaction"
    *kept, summary = answer["output"]
    assert [(item["role"], item["content"]) for item in kept] == [
        ("developer", [{"type": "input_text", "text": "Speak."}]),
        ("user", [{"type": "input_text", "text": "What is iron?"}]),
        ("user", USERS[1]["content"]),
    ]
    assert summary["type"] == "compaction"
    assert len({item["id"] for item in answer["output"]}) == 4
    assert answer["usage"]["output_tokens"] > 0
    prompt = prompt_of(deployment, "writer")
    order = ["Be good.", "Speak.", "What is iron?", "Be brief.", "A metal.", "Summarize"]
    assert [text for text in order if text in prompt] == order
    goes_on = [*answer["output"], {"role": "user", "content": "So?"}]
    deployment.ask(PATH, model="writer", input=goes_on)
    prompt = prompt_of(deployment, "writer")
    order = ["Speak.", "What is iron?", "Be brief.", "Summarize", SUMMARY, "So?"]
    places = [prompt.index(text) for text in order]
    assert places == sorted(places)
    assert not [text for text in ("Be good.", "A metal.", "Hm.") if text in prompt]


def test_a_summary_is_summed_up_again_where_roles_alternate(deployment, say):
    deployment.engines["alternating"].script.tokens = [*say(SUMMARY), 1]
    first = compacted(deployment, model="alternating", input=USERS)
    second = compacted(deployment, model="alternating", input=first["output"])
    prompt = prompt_of(deployment, "alternating")
    assert (prompt.count("Summarize"), prompt.count("[INST]"), prompt.count(SUMMARY)) == (2, 2, 1)
    assert [item["type"] for item in second["output"]] == ["message", "message", "compaction"]
    assert second["output"][-1]["encrypted_content"] == first["output"][-1]["encrypted_content"]


def test_a_text_is_the_user_s(deployment):
    message, _ = compacted(deployment, input="Hello")["output"]
    assert (message["role"], message["content"][0]["text"]) == ("user", "Hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None, "input": "Hello"}, "model"),
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[0].call_id"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(deployment, fields, param):
    error = deployment.refusal(COMPACT, **{"model": "writer"} | fields)
    assert error["param"] == param
