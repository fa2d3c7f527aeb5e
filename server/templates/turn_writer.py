"""Renders small turns of an assistant, to see what a template writes of them."""

import json
import math
import time
from typing import Any

from server.templates.loaded_template import PROBING_S, LoadedTemplate, kinds_of
from server.templates.protocol import Conversation, Message
from server.turns.turn_parser import Call

JSON = dict[str, Any]

# Small letters only, as templates escape and change others. The keys are in order.
ASK, TEXT, THOUGHT = "zqaskvx", "zqtextvx", "zqthoughtvx"
FIRST, SECOND = "zqfirstvx", "zqsecondvx"
KEY, LATER_KEY, VALUE = "zqkeyvx", "zqlatervx", "zqvaluevx"
IDS = ("call00001", "call00002")
NAMED_IDS = (f"functions.{FIRST}:0", f"functions.{SECOND}:1")
FOREIGN_IDS = ("call_a", "call_b")


class TooSlowError(Exception):
    """A template takes too much time to be learnt from."""


class TurnWriter:
    """Renders turns behind a question."""

    def __init__(
        self, template: LoadedTemplate, tools: list[JSON] | None = None, seconds: float = math.inf
    ) -> None:
        """The tools are those that are called. After so many `seconds` of processor time its
        methods raise TooSlowError."""
        self._until = time.process_time() + seconds
        self.source = template.source
        self.ids: tuple[str, ...] = IDS
        self._template = template
        self._tools = tools or SAMPLE_TOOLS
        self._manners = template.manners

    def take_tools(self) -> None:
        """Find out anew how messages are written, now that there are tools."""
        seconds = min(PROBING_S, self._until - time.process_time())
        self._manners = self._template.manners_with({}, self._tools, seconds)

    def prompt(self, **variables: Any) -> str:
        """The text behind the question that leads to a turn. Empty if there is none."""
        return self._behind([], variables) or ""

    def answer(self, text: str, reasoning: str = "") -> str:
        """The text behind the question with an answer. Empty if it is refused."""
        return self._behind([{"role": "assistant", "content": text, **_thought(reasoning)}]) or ""

    def calls(
        self, *calls: Call, ids: tuple[str, ...] = (), text: str = "", reasoning: str = ""
    ) -> str | None:
        """The text behind the question with a turn of calls. None if it is refused."""
        written = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call, call_id in zip(calls, _enough(ids or self.ids, len(calls)), strict=True)
        ]
        turn = {"role": "assistant", "tool_calls": written, **_thought(reasoning)}
        return self._behind([turn | {"content": text} if text else turn])

    def call(self, **arguments: Any) -> str | None:
        """The text behind the question with one call."""
        return self.calls(Call(FIRST, arguments))

    def leaves_out_tools(self) -> bool:
        """True if the prompt of a question, if there is one, has no tools."""
        text = self._text([], {})
        return text is not None and FIRST not in text

    def _behind(self, turn: list[Message], variables: JSON | None = None) -> str | None:
        _, found, behind = (self._text(turn, variables or {}) or "").rpartition(ASK)
        return behind if found else None

    def _text(self, turn: list[Message], variables: JSON) -> str | None:
        if time.process_time() > self._until:
            raise TooSlowError("its chat template is too slow to learn calls of tools from")
        messages = [{"role": "user", "content": ASK}, *turn]
        conversation = Conversation(
            messages=self._manners.shaped(messages, kinds_of(messages)),
            tools=self._tools,
            add_generation_prompt=not turn,
            variables=variables,
        )
        try:
            return self._template.render(conversation)
        except Exception:  # a template is a program, and may raise anything
            return None


def _thought(reasoning: str) -> JSON:
    return {"reasoning_content": reasoning} if reasoning else {}


def _enough(ids: tuple[str, ...], count: int) -> tuple[str, ...]:
    return ids[:count] + tuple(f"call{number:05}" for number in range(len(ids) + 1, count + 1))


def _tool(name: str) -> JSON:
    properties = {key: {"type": "string", "description": "A key."} for key in (KEY, LATER_KEY)}
    schema = {"type": "object", "properties": properties, "required": [KEY]}
    function = {"name": name, "description": "A tool.", "parameters": schema}
    return {"type": "function", "function": function}


SAMPLE_TOOLS = [_tool(FIRST), _tool(SECOND)]
