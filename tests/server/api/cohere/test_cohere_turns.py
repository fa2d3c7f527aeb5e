"""Turns in Cohere's shapes: reasoning and calls, whole and as events."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine_core.messages import Finish
from engine_core.tokenization.tokenizer import Tokenizer
from server.api.cohere.chat_answer import CohereForm
from server.generation.plan import GenerationPlan
from server.schemas.common import CompletionUsage, PromptTokensDetails
from tests.server.conftest import joined
from tests.server.generation.read_turns import CALL, END, Row, turn_plan

THOUGHT = "<think>\nHm.\n</think>\n\n"


class Answer:
    """A choice as a client of Cohere's gets it."""

    def __init__(self, tokenizer: Tokenizer, plan: GenerationPlan) -> None:
        self.row = Row(tokenizer, plan)
        model: Any = SimpleNamespace(token_bytes=self.row.tokenizer.token_bytes)
        self._form = CohereForm("chat-0a1b", model, plan)
        usage = CompletionUsage(1, 2, 3, PromptTokensDetails(0))
        self._generation: Any = SimpleNamespace(choices=[self.row.choice], usage=lambda: usage)

    async def whole(self, text: str, finish: Finish = "stop") -> dict[str, Any]:
        piece = self.row.whole(text, finish)
        return msgspec.to_builtins(await self._form.whole([piece], self._generation))

    async def events(self, text: str, finish: Finish = "stop") -> list[dict[str, Any]]:
        pieces = self.row.pieces(text, finish)
        sent = self._form.begin() + await self._form.events(pieces, self._generation)
        lines = (sent + await self._form.end(self._generation)).decode().split("\n")
        return [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: ")]


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, each part and call within its begin and its end."""
    content: list[Any] = []
    calls: list[Any] = []
    is_open = ""
    for event in events[1:-1]:
        kind, _, what = event["type"].rpartition("-")
        parts, name = {"content": (content, "content"), "tool-call": (calls, "tool_calls")}[kind]
        assert event["index"] == len(parts) - (what != "start")
        assert is_open == ("" if what == "start" else kind)
        is_open = "" if what == "end" else kind
        if what == "start":
            parts.append({})
        if what != "end":
            parts[-1] = joined(parts[-1], event["delta"]["message"][name])
    assert not is_open
    found = {"content": content, "tool_calls": calls}
    return {"role": "assistant", **{name: parts for name, parts in found.items() if parts}}


def called(number: int) -> dict[str, Any]:
    function = {"name": "get", "arguments": '{"a": "x"}'}
    return {"id": f"call_0a1b_0_{number}", "type": "function", "function": function}


THINKING, SO = {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}


@pytest.mark.parametrize(
    ("text", "finish", "message", "reason"),
    [
        (f"So.{END}", "stop", {"content": [SO]}, "COMPLETE"),
        (END, "stop", {"content": [{"type": "text", "text": ""}]}, "COMPLETE"),
        (f"{THOUGHT}So.{END}", "stop", {"content": [THINKING, SO]}, "COMPLETE"),
        ("<think>Hm.", "length", {"content": [THINKING]}, "MAX_TOKENS"),
        (f"{CALL}{END}", "stop", {"tool_calls": [called(0)]}, "TOOL_CALL"),
        (
            f"{THOUGHT}So.{CALL}{CALL}{END}",
            "stop",
            {"content": [THINKING, SO], "tool_calls": [called(0), called(1)]},
            "TOOL_CALL",
        ),
    ],
)
async def test_a_turn_in_whole_and_as_events(
    tokenizer: Tokenizer, text: str, finish: Finish, message: dict[str, Any], reason: str
) -> None:
    whole = await Answer(tokenizer, turn_plan()).whole(text, finish)
    assert whole["message"] == {"role": "assistant", **message}
    events = await Answer(tokenizer, turn_plan()).events(text, finish)
    assert put_together(events) == whole["message"]
    assert events[-1]["delta"]["finish_reason"] == whole["finish_reason"] == reason


@pytest.mark.parametrize("text", ["So STOP it", f"{CALL} So STOP it"])
async def test_an_end_at_a_stop_string(tokenizer: Tokenizer, text: str) -> None:
    plan = turn_plan(stops=("STOP",))
    reason = "TOOL_CALL" if CALL in text else "STOP_SEQUENCE"
    assert (await Answer(tokenizer, plan).whole(text + END))["finish_reason"] == reason


async def test_events_have_the_log_probabilities_of_all_tokens(tokenizer: Tokenizer) -> None:
    text = f"{THOUGHT}So.{CALL}{END}"
    answer = Answer(tokenizer, turn_plan(logprobs=0))
    items = [event["logprobs"] for event in await answer.events(text) if "logprobs" in event]
    assert [token for item in items for token in item["token_ids"]] == answer.row.ids(text)
