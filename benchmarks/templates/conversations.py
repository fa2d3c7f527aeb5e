"""Conversations as clients send them, each text with words of letters that no template has."""

import json
import re
from typing import Any

JSON = dict[str, Any]

REASONING_WORD = "wqthoughtwq"
_WORD = re.compile("wq[a-z]+wq")
_USER = {"role": "user", "content": "Please wquserwq now."}
_MORE = {"role": "user", "content": "And wqmorewq then?"}
_ANSWER = {"role": "assistant", "content": "Well, wqanswerwq it is."}
_SYSTEM = {"role": "system", "content": "Be wqsystemwq brief."}
_OTHER_SYSTEM = {"role": "system", "content": "Be wqotherwq polite."}
_DEVELOPER = {"role": "developer", "content": "Be wqdeveloperwq brief."}
_CRITIC = {"role": "critic", "content": "Too wqcriticwq long."}
_REASONING = {"reasoning_content": f"Hm, {REASONING_WORD} maybe."}
_PARTS = [
    {"type": "text", "text": "First wqonewq part."},
    {"type": "text", "text": "Second wqtwowq part."},
]


def _calling(*functions: str, **fields: Any) -> JSON:
    calls = [
        {
            "id": f"call{number:05}",
            "type": "function",
            "function": {"name": name, "arguments": f'{{"wqkey{name}": "wqvalue{name}"}}'},
        }
        for number, name in enumerate(functions, 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def _result(text: str, number: int = 1) -> JSON:
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": "f", "content": text}


_CALL, _RESULT = _calling("wqtoolwq"), _result("It is wqresultwq degrees.")

CONVERSATIONS: dict[str, list[JSON]] = {
    "a string": [_USER],
    "parts": [{"role": "user", "content": _PARTS}],
    "two turns": [_USER, _ANSWER, _MORE],
    "two turns of parts": [
        {"role": "user", "content": _PARTS},
        {"role": "assistant", "content": [{"type": "text", "text": "So wqsowq it is."}]},
        _MORE,
    ],
    "system": [_SYSTEM, _USER],
    "system in parts": [{"role": "system", "content": _PARTS}, _USER],
    "system alone": [_SYSTEM],
    "two systems": [_SYSTEM, _OTHER_SYSTEM, _USER],
    "a system later": [_USER, _ANSWER, _SYSTEM, _MORE],
    "developer": [_DEVELOPER, _USER],
    "an answer first": [_ANSWER, _USER],
    "an answer last": [_USER, _ANSWER],
    "a role of its own": [_USER, _CRITIC, _MORE],
    "a tool call": [_USER, _CALL, _RESULT],
    "after a tool call": [_SYSTEM, _USER, _CALL, _RESULT, _ANSWER, _MORE],
    "a tool call with text": [_USER, _CALL | {"content": "I wqlookwq it up."}, _RESULT],
    "two tool calls": [
        _USER,
        _calling("wqtoolwq", "wqsecondwq"),
        _RESULT,
        _result("And wqlastwq.", 2),
    ],
    "a result without a call": [_USER, _RESULT],
    "a name": [_USER | {"name": "wqadawq"}],
    "reasoning": [_USER, _ANSWER | _REASONING, _MORE],
    "reasoning at last": [_USER, _ANSWER | _REASONING],
    "reasoning before a call": [_USER, _CALL | _REASONING, _RESULT],
}


def words_of(messages: list[JSON]) -> set[str]:
    """The words of the messages, of which a prompt may leave out REASONING_WORD."""
    return set(_WORD.findall(json.dumps(messages)))
