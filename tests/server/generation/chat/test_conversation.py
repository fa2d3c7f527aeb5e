"""What messages become in the prompt: parts, roles, refusals, what an SDK sends back."""

import asyncio
from collections.abc import Iterator

import pytest

from server.generation.chat.conversation import ChatOptions, conversation
from server.schemas.chat import ChatMessage
from server.templates.protocol import ChatTemplate
from tests.server.chat_client import HELLO, chat, error, job_of, say_little
from tests.server.chat_templates import CHATML, LLAMA3, chat_deployment
from tests.server.conftest import Deployment

REFUSAL = {"type": "refusal", "refusal": "I cannot."}
TWO_ROLES = """\
{% for message in messages %}{% if message.role in ("user", "assistant") %}
{{ message.role }}: {{ message.content }}{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    templates: dict[str, object] = {"writer": LLAMA3, "chatml": CHATML, "two roles": TWO_ROLES}
    with chat_deployment(tokenizer, templates) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def test_parts_of_text_are_joined_by_line_breaks(deployment):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    chat(deployment, messages=[{"role": "user", "content": parts}])
    assert "\n\nHello\nthere<|eot_id|>" in job_of(deployment).texts[0]


def test_a_developer_is_a_system_where_the_template_knows_none(deployment):
    talk = [{"role": "developer", "content": "Be brief."}, *HELLO]
    chat(deployment, messages=talk)
    assert "<|start_header_id|>system<|end_header_id|>\n\nBe brief." in job_of(deployment).texts[0]


def test_what_an_sdk_sends_back(deployment):
    """An answer as the SDK dumps it, with tool calls of some other server."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    talk = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    chat(deployment, model="chatml", messages=talk)
    (text,) = job_of(deployment, "chatml").texts
    assert '<call>{"name": "f", "arguments": {"a": 1}}</call>' in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"refusal": "I cannot."}, "I cannot."),
        ({"content": "Well.", "refusal": "I cannot."}, "Well.\nI cannot."),
        ({"content": [REFUSAL, {"type": "text", "text": "Or?"}]}, "I cannot.\nOr?"),
    ],
)
def test_an_earlier_refusal_is_text(deployment, answer, said):
    chat(deployment, model="chatml", messages=[*HELLO, {"role": "assistant", **answer}])
    assert f"assistant\n{said}<|im_end|>" in job_of(deployment, "chatml").texts[0]


def test_a_role_of_the_template_s_own(deployment):
    talk = [*HELLO, {"role": "critic", "content": " Too long. "}]
    chat(deployment, model="chatml", messages=talk)
    assert "<|im_start|>critic\n Too long. <|im_end|>" in job_of(deployment, "chatml").texts[0]


def test_a_role_that_the_template_leaves_out(deployment):
    talk = [*HELLO, {"role": "critic", "content": "Too long."}]
    refused = error(deployment, model="two roles", messages=talk)
    assert refused["param"] == "messages[1].role"
    assert "leaves out a later message of role 'critic'" in refused["message"]


async def test_others_have_their_turns_while_many_messages_are_parsed() -> None:
    options = ChatOptions(add_generation_prompt=None, continue_final_message=None, variables={})
    template = ChatTemplate(source=CHATML, file="", tokens={})
    messages = [ChatMessage(role="user", content="x")] * 10_000
    parsing = asyncio.create_task(conversation(messages, options, template))
    turns = 0
    while not parsing.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(parsing.result().messages) == 10_000
    assert turns >= 9
