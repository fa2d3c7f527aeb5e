"""What messages become in the prompt: parts, roles, refusals, what an SDK sends back."""

import json
from collections.abc import Iterator

import msgspec
import pytest

from server.generation.conversation import ChatOptions, conversation
from server.schemas.chat import ChatMessage
from server.templates.protocol import ChatTemplate
from tests.server.chat_client import HELLO, PATH, chat, choices, chunks_of, error, say_little
from tests.server.chat_templates import CHATML, LLAMA3, chat_deployment
from tests.server.conftest import Deployment
from tests.server.generation.test_half_characters import TEXT, whole_characters
from tests.server.generation.test_scores import turns_beside

REFUSAL = {"type": "refusal", "refusal": "I cannot."}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
PARTS_ONLY = """\
{# a developer may follow #}{% set developer_preamble = "" %}
{% for message in messages %}{% if message.role in ("system", "user") %}
{{ message.role }}:{% for part in message.content %} {{ part.text | upper | e }}{% endfor %}
{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    templates = {"writer": LLAMA3, "chatml": CHATML, "parts only": PARTS_ONLY}
    with chat_deployment(tokenizer, templates) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def test_what_an_sdk_sends_back(deployment):
    """An answer as the SDK dumps it, with tool calls of some other server."""
    nothing = dict.fromkeys(("content", "refusal", "audio", "function_call"))
    talk = [
        *HELLO,
        {"role": "assistant", "annotations": [], "tool_calls": [CALL]} | nothing,
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    chat(deployment, model="chatml", messages=talk)
    (text,) = deployment.job("chatml").texts
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
    critic = {"role": "critic", "content": " Too long. "}  # a role of the template's own
    chat(deployment, model="chatml", messages=[*HELLO, {"role": "assistant", **answer}, critic])
    (text,) = deployment.job("chatml").texts
    assert f"assistant\n{said}<|im_end|>\n<|im_start|>critic\n Too long. <|im_end|>" in text


@pytest.mark.parametrize("path", [PATH, "/tokenize"])
@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "Hi"}, "messages[1].role"),
        ({"role": "critic", "content": "Hi"}, "messages[1].role"),
        ({"role": "assistant", "tool_calls": [CALL]}, "messages[1].role"),
        ({"role": "user", "content": "Hi", "name": "Ada"}, "messages[1].name"),
        ({"role": "user", "content": "Hi", "reasoning": "Hm"}, "messages[1].reasoning"),
    ],
)
def test_what_a_template_leaves_out_is_refused_by_name(deployment, message, param, path):
    refused = deployment.refusal(path, model="parts only", messages=[*HELLO, message])
    assert refused["param"] == param


def test_reasoning_by_two_names_that_differ(deployment):
    answer = {"role": "assistant", "content": "Hi", "reasoning": "a", "reasoning_content": "b"}
    refused = error(deployment, messages=[*HELLO, answer, *HELLO])
    assert refused["param"] == "messages[1].reasoning"


async def test_others_have_their_turns_while_many_messages_are_parsed() -> None:
    options = ChatOptions(add_generation_prompt=None, continue_final_message=None, variables={})
    template = ChatTemplate(source=CHATML, file="", tokens={})
    messages = [ChatMessage(role="user", content="x")] * 10_000
    parsed, turns = await turns_beside(conversation(messages, options, template))
    assert len(parsed.messages) == 10_000
    assert turns >= 9


def part(kind: str, value: object) -> dict[str, object]:
    return {"type": kind, kind: value}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            [part("thinking", "Hm."), part("text", "So.")],
            {"content": [part("text", "So.")], "reasoning_content": "Hm."},
        ),
        (
            [part("thinking", "Hm "), part("thinking", "hm.")],
            {"reasoning_content": "Hm hm."},
        ),
        ([part("thinking", "")], {"content": []}),
    ],
)
async def test_thinking_in_an_assistants_content_is_its_reasoning(parts, expected) -> None:
    message = msgspec.convert({"role": "assistant", "content": parts}, ChatMessage)
    options = ChatOptions(add_generation_prompt=None, continue_final_message=None, variables={})
    template = ChatTemplate(source=CHATML, file="", tokens={})
    parsed = await conversation([message], options, template)
    assert parsed.messages == [{"role": "assistant", **expected}]


@pytest.mark.parametrize("data", ["42", {"found": 42}])
def test_a_document_in_a_tools_content_is_its_text(deployment, data):
    call = {"role": "assistant", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": [part("document", {"data": data})]}
    chat(deployment, model="chatml", messages=[*HELLO, call, result])
    (text,) = deployment.job("chatml").texts
    assert f"{data if isinstance(data, str) else json.dumps(data, separators=(',', ':'))}<" in text


@pytest.mark.parametrize(
    ("role", "parts", "param"),
    [
        ("user", [part("thinking", "Hm.")], "messages[0].content[0]"),
        ("user", [part("document", {"data": "a"})], "messages[0].content[0]"),
        ("assistant", [part("document", {"data": "a"})], "messages[0].content[0]"),
        ("tool", [part("text", "a"), part("refusal", "No.")], "messages[0].content[1]"),
        ("assistant", [{"type": "thinking"}], "messages[0].content[0].thinking"),
        ("tool", [{"type": "document"}], "messages[0].content[0].document"),
        ("tool", [part("document", {"data": 4})], "messages[0].content[0].document.data"),
    ],
)
def test_parts_that_a_role_does_not_have_are_refused(deployment, role, parts, param):
    messages = [{"role": role, "content": parts}, *HELLO]
    assert error(deployment, model="chatml", messages=messages)["param"] == param


BEGUN = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]


def prompt_ids(deployment, tokenizer) -> list[int]:
    job = deployment.engines["writer"].received[0]
    return tokenizer.raw.encode(job.texts[0], add_special_tokens=False).ids


def test_the_ids_of_an_answer_and_its_prompt(deployment, say, tokenizer):
    ids = say("naïve cafés")
    body = chat(deployment, return_token_ids=True, n=2)
    assert [choice["token_ids"] for choice in body["choices"]] == [[*ids, 1]] * 2
    assert body["prompt_token_ids"] == prompt_ids(deployment, tokenizer)
    plain = chat(deployment, return_token_ids=False)
    assert (plain["prompt_token_ids"], plain["choices"][0]["token_ids"]) == (None, None)


def test_the_ids_in_a_stream(deployment, say, tokenizer):
    ids = say("naïve cafés, a b c")
    deployment.engines["writer"].script.step_seconds = 0.005
    first, *others = chunks_of(deployment, return_token_ids=True)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert first["prompt_token_ids"] == prompt_ids(deployment, tokenizer)
    assert not [chunk for chunk in others if "prompt_token_ids" in chunk]
    told = [chunk["choices"][0].get("token_ids", []) for chunk in [first, *others]]
    assert [token for tokens in told for token in tokens] == [*ids, 1]
    assert not any("token_ids" in str(chunk) for chunk in chunks_of(deployment))


@pytest.mark.parametrize("width", [0, 2])
def test_the_scores_of_a_prompt(deployment, tokenizer, width):
    body = chat(deployment, prompt_logprobs=width, n=2)
    (job,) = deployment.engines["writer"].received
    assert (job.params.prompt_logprobs, job.params.logprobs) == (width, None)
    ids = prompt_ids(deployment, tokenizer)
    first, *entries = body["prompt_logprobs"]
    assert first is None
    for id_, entry in zip(ids[1:], entries, strict=True):
        assert entry[str(id_)]["logprob"] == -0.5
        assert len(entry) <= width + 1
    assert chat(deployment)["prompt_logprobs"] is None
    assert error(deployment, prompt_logprobs=0, stream=True)["param"] == "prompt_logprobs"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("messages", "echoed"),
    [(BEGUN, "Well"), (HELLO, ""), ([*BEGUN, *HELLO], ""), ([{"role": "assistant"}], "")],
)
def test_the_message_before_is_echoed_if_it_is_an_assistants(
    deployment, say, streamed, messages, echoed
):
    say(", so")
    answers = choices(deployment, messages=messages, echo=True, n=2, stream=streamed)
    assert [answer["message"]["content"] for answer in answers] == [f"{echoed}, so"] * 2


def test_chats_spell_parts_of_characters_without_a_mark(deployment, tokenizer):
    ids = tokenizer.raw.encode(TEXT, add_special_tokens=False).ids
    deployment.engines["writer"].script.tokens = ids
    answer = chat(deployment, logprobs=True, max_tokens=len(ids) - 1)
    assert answer["choices"][0]["message"]["content"] == whole_characters(tokenizer, len(ids) - 1)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == TEXT.encode()[:-1]
    assert {"token": r" \xf0\x9f", "bytes": [32, 240, 159]}.items() <= entries[3].items()
