"""Calls of tools in a conversation's messages, and which call each result is of."""

from collections.abc import Sequence
from typing import Any

import msgspec

from server.errors import quoted
from server.schemas.chat import ChatMessage, FunctionCall
from server.schemas.common import invalid

_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


class EarlierCalls:
    """The calls of the messages so far. Those without an id get one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open: dict[str, str] = {}  # of these, the last message's that have no result yet

    def fields_of(self, message: ChatMessage, field: str) -> dict[str, Any]:
        """What the template gets of a message's calls, or of it as a tool's result. Raises
        RefusalError: arguments that are no object, a result of no call."""
        if calls := self._calls_of(message, field):
            return {"tool_calls": calls}
        # In the older form, a result is a message of a called function.
        is_older = message.role == "function" and message.name in self._open.values()
        return self._result(message, field) if is_older or message.role == "tool" else {}

    def _calls_of(self, message: ChatMessage, field: str) -> Sequence[dict[str, Any]]:
        named = [
            (f"{field}.tool_calls[{number}].function", call.id, call.function)
            for number, call in enumerate(message.tool_calls or [])
        ]
        if message.function_call is not None:
            if named:
                raise invalid(f"{field}.function_call", "not together with tool_calls")
            named = [(f"{field}.function_call", None, message.function_call)]
        if named:
            self._open = {}
        return [self._call(path, call_id, function) for path, call_id, function in named]

    def _call(self, field: str, call_id: str | None, function: FunctionCall) -> dict[str, Any]:
        arguments = function.arguments or "{}"
        try:
            _ARGUMENTS.decode(arguments)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise invalid(f"{field}.arguments", f"is not a JSON object: {error}") from None
        known = call_id or f"call_{len(self._names)}"
        self._names[known] = self._open[known] = function.name
        called = {"name": function.name, "arguments": arguments}
        return {"id": known, "type": "function", "function": called}

    def _result(self, message: ChatMessage, field: str) -> dict[str, Any]:
        call_id = message.tool_call_id or self._first_open(message)
        name = self._names.get(call_id)
        if name is None:
            said = f"a call of id {quoted(call_id)}" if call_id else "a call without a result"
            raise invalid(f"{field}.tool_call_id", f"no earlier message has {said}")
        self._open.pop(call_id, None)
        return {"role": "tool", "tool_call_id": call_id, "name": message.name or name}

    def _first_open(self, message: ChatMessage) -> str:
        names = self._open.items()
        return next((each for each, name in names if message.name in (None, name)), "")
