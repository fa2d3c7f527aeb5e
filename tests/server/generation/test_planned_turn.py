"""How an answer's turn is read: always where the model reasons, else only with tools."""

from typing import Any

import pytest

from engine_core.turn_format import TurnFormat
from server.generation.plan import GenerationPlan, TurnReading
from server.generation.planned_turn import with_turn
from server.generation.requested_tools import RequestedTools, requested_tools
from server.schemas.chat import ChatMessage, ChatRequest, Function, Tool
from server.turns.known_formats import HERMES
from tests.server.generation.test_scores import plan

CALLS_ONLY = TurnFormat(calls=HERMES.calls)


def tools(**fields: Any) -> RequestedTools | None:
    messages = [ChatMessage(role="user", content="a")]
    asked = [Tool(function=Function(name=name)) for name in ("f", "g")]
    return requested_tools(ChatRequest(messages=messages, tools=asked, **fields))


def turn(
    form: TurnFormat | None, prompt: str, asked: RequestedTools | None = None
) -> TurnReading | None:
    made: GenerationPlan = with_turn(plan(None), form, prompt, asked, None)
    return made.turn


@pytest.mark.parametrize("form", [None, CALLS_ONLY])
def test_without_tools_and_reasoning_all_is_text(form: TurnFormat | None) -> None:
    assert turn(form, "Hello") is None


def test_reasoning_is_always_read_by_the_end_of_the_prompt() -> None:
    found = turn(HERMES, "a" * 10_000 + "<think>\n")
    assert found is not None
    assert (found.form, found.tools) == (HERMES, {})
    assert found.prompt_end.endswith("a<think>\n")
    assert len(found.prompt_end) < 1000


NOTHING = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("fields", "names"), [({}, ["f", "g"]), ({"tool_choice": "required"}, ["f", "g"]),
                          ({"tool_choice": "none"}, [])],
)  # fmt: skip
def test_calls_are_read_of_those_tools_that_may_be_called(
    fields: dict[str, Any], names: list[str]
) -> None:
    found = turn(CALLS_ONLY, "Hello", tools(**fields))
    assert found == TurnReading(
        form=CALLS_ONLY, tools=dict.fromkeys(names, NOTHING), prompt_end="Hello"
    )
