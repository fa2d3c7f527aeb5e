"""A turn in a chat's answer: messages, deltas, ids of calls, finish reasons."""

import json
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine_core.messages import Finish
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.turn_format import IdForm, TurnFormat
from server.api.chat import ChatForm
from server.generation.chat_turn import CallIds
from server.generation.plan import GenerationPlan
from server.schemas.chat import ChatMessage, ChatRequest, Function
from server.turns.turn_parser import CallBegin
from tests.server.conftest import joined
from tests.server.generation.read_turns import CALL, END, Row, reading, turn_plan

THOUGHT = "<think>\nHm.\n</think>\n\n"
TWO = f"{CALL}\n{CALL.replace('get', 'get_all')}"
BODY: dict[str, Any] = {"messages": [ChatMessage(role="user", content="x")]}
FUNCTIONS = [Function(name="get"), Function(name="get_all")]


class Answer:
    """The choices of an answer to BODY as its client gets them."""

    def __init__(self, tokenizer: Tokenizer, plan: GenerationPlan, **fields: Any) -> None:
        self._row = Row(tokenizer, plan)
        self._model: Any = SimpleNamespace(
            name="m", fingerprint="f", token_text=None, token_bytes=self._row.tokenizer.token_bytes
        )
        body = ChatRequest(**BODY | fields)
        self._form = ChatForm(body, self._model, "chatcmpl-0a1b", plan)

    async def whole(self, text: str, finish: Finish = "stop") -> dict[str, Any]:
        choice = await self._form.choice(self._row.whole(text, finish))
        return msgspec.to_builtins(choice)

    async def streamed(self, text: str, finish: Finish = "stop") -> list[dict[str, Any]]:
        generation: Any = None
        sent = await self._form.events(self._row.pieces(text, finish), generation)
        events = [event.removeprefix("data: ") for event in sent.decode().split("\n\n")[:-1]]
        return [choice for event in events for choice in json.loads(event)["choices"]]


def put_together(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole choice of a stream's, calls by their numbers."""
    calls: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for choice in choices:
        delta = choice.pop("delta")
        for call in delta.pop("tool_calls", []):
            number = call.pop("index")
            calls[number] = joined(calls.get(number, {}), call)
        whole = joined(whole, {"message": delta, **choice})
    if calls:
        assert list(calls) == list(range(len(calls)))
        whole["message"]["tool_calls"] = list(calls.values())
    return whole


def called(number: int, name: str = "get") -> dict[str, Any]:
    function = {"name": name, "arguments": '{"a": "x"}'}
    return {"id": f"call_0a1b_0_{number}", "type": "function", "function": function}


REASONED = {"reasoning_content": "Hm.", "reasoning": "Hm."}
ANSWERS: list[tuple[str, Finish, dict[str, Any], str]] = [
    ("So.", "stop", {"content": "So."}, "stop"),
    (f"{THOUGHT}So.", "stop", {"content": "So.", **REASONED}, "stop"),
    ("<think>Hm.", "length", {"content": "", **REASONED}, "length"),
    (CALL, "stop", {"content": None, "tool_calls": [called(0)]}, "tool_calls"),
    (
        f"{THOUGHT}So.\n{TWO}",
        "stop",
        {"content": "So.", **REASONED, "tool_calls": [called(0), called(1, "get_all")]},
        "tool_calls",
    ),
    (CALL, "length", {"content": None, "tool_calls": [called(0)]}, "length"),
]


@pytest.mark.parametrize(("text", "finish", "message", "reason"), ANSWERS)
async def test_a_turn_in_whole_and_streamed(
    tokenizer: Tokenizer, text: str, finish: Finish, message: dict[str, Any], reason: str
) -> None:
    end = END if finish == "stop" else ""
    expected = {"role": "assistant", "refusal": None, **message}
    whole = await Answer(tokenizer, turn_plan()).whole(text + end, finish)
    assert whole.pop("message") == expected
    assert whole.pop("token_ids") is None
    assert whole == {"index": 0, "logprobs": None, "finish_reason": reason}
    choices = await Answer(tokenizer, turn_plan()).streamed(text + end, finish)
    streamed = put_together(choices)
    # A stream's message has no text yet when its reasoning begins.
    streamed["message"]["content"] = streamed["message"]["content"] or expected["content"]
    assert streamed == {"message": expected, **whole}


async def test_the_deltas_of_a_call(tokenizer: Tokenizer) -> None:
    """Its number, id and name come first, then its arguments as they arrive."""
    choices = await Answer(tokenizer, turn_plan()).streamed(CALL + END)
    deltas = [choice["delta"] for choice in choices]
    begin = {**called(0), "index": 0, "function": {"name": "get", "arguments": ""}}
    assert deltas[:2] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"tool_calls": [begin]},
    ]
    *arguments, last = deltas[2:]
    assert last == {}
    assert len(arguments) > 1
    for delta in arguments:
        (call,) = delta["tool_calls"]
        assert (call["index"], [*call], [*call["function"]]) == (
            0,
            ["index", "function"],
            ["arguments"],
        )


@pytest.mark.parametrize(
    ("text", "finish", "called_as", "reason"),
    [
        (TWO + END, "stop", {"name": "get", "arguments": '{"a": "x"}'}, "function_call"),
        ("So." + END, "stop", None, "stop"),
        (CALL[:-15], "length", None, "length"),
    ],
)
async def test_a_request_with_functions_gets_one_call(
    tokenizer: Tokenizer, text: str, finish: Finish, called_as: dict[str, str] | None, reason: str
) -> None:
    whole = await Answer(tokenizer, turn_plan(), functions=FUNCTIONS).whole(text, finish)
    assert whole["message"].get("function_call") == called_as
    assert "tool_calls" not in whole["message"]
    assert whole["finish_reason"] == reason
    answer = Answer(tokenizer, turn_plan(), functions=FUNCTIONS)
    streamed = put_together(await answer.streamed(text, finish))
    assert "tool_calls" not in streamed["message"]
    assert streamed["finish_reason"] == reason
    if called_as:
        assert streamed["message"]["function_call"] == called_as


async def test_a_call_that_is_cut_is_in_a_stream_alone(tokenizer: Tokenizer) -> None:
    cut = CALL[:-15]
    whole = await Answer(tokenizer, turn_plan()).whole(cut, "length")
    assert "tool_calls" not in whole["message"]
    assert whole["message"]["content"] == ""
    streamed = put_together(await Answer(tokenizer, turn_plan()).streamed(cut, "length"))
    assert streamed["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "x"'
    assert whole["finish_reason"] == streamed["finish_reason"] == "length"


async def test_every_token_has_its_log_probability_and_its_id(tokenizer: Tokenizer) -> None:
    plan = turn_plan(logprobs=0, return_token_ids=True)
    text = f"{THOUGHT}So.{TWO}{END}"
    fields = {"logprobs": True, "return_token_ids": True}
    whole = await Answer(tokenizer, plan, **fields).whole(text)
    streamed = put_together(await Answer(tokenizer, plan, **fields).streamed(text))
    assert whole["logprobs"] == streamed["logprobs"]
    assert whole["token_ids"] == streamed["token_ids"] == Row(tokenizer, plan).ids(text)
    spelled = b"".join(bytes(entry["bytes"]) for entry in whole["logprobs"]["content"])
    assert spelled.decode() == text


async def test_an_echoed_message_stands_before_the_turns_text(tokenizer: Tokenizer) -> None:
    messages = [ChatMessage(role="user", content="x"), ChatMessage(role="assistant", content="I ")]
    body = {"messages": messages, "echo": True}
    answer = Answer(tokenizer, turn_plan(), **body)
    assert (await answer.whole(f"{THOUGHT}do.{END}"))["message"]["content"] == "I do."
    answer = Answer(tokenizer, turn_plan(), **body)
    assert put_together(await answer.streamed(f"do.{END}"))["message"]["content"] == "I do."


def call_id(answer: str, form: IdForm, choice: int, begin: CallBegin) -> str:
    call = CallIds(answer, reading(TurnFormat(ids=form))).call(begin, choice, "{}")
    assert isinstance(call.id, str)
    return call.id


@pytest.mark.parametrize(
    ("form", "own", "expected"),
    [
        ("any", "", "call_0a1b_2_1"),
        ("any", "toolu_x", "toolu_x"),
        ("any", "7", "call_0a1b_2_1"),
        ("nine letters", "", "[0-9a-f]{9}"),
        ("nine letters", "abcdefghi", "abcdefghi"),
        ("functions.name:index", "", "functions.get:1"),
        ("functions.name:index", "7", "functions.get:7"),
    ],
)
def test_ids_of_calls_have_the_form_that_the_history_takes(
    form: IdForm, own: str, expected: str
) -> None:
    assert re.fullmatch(expected, call_id("chatcmpl-0a1b", form, 2, CallBegin(1, "get", own)))


def test_ids_of_calls_differ() -> None:
    forms: list[IdForm] = ["any", "nine letters"]
    for form in forms:
        ids = [
            call_id(answer, form, choice, CallBegin(number, "get", ""))
            for answer in ("chatcmpl-0a1b", "chatcmpl-0a1c")
            for number in range(20)
            for choice in range(20)
        ]
        assert len(set(ids)) == len(ids)
