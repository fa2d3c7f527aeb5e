"""Chats with tools, drawn at random, and their answers in one shape, streamed or whole."""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "set": {
        "type": "object",
        "properties": {
            "on": {"type": "boolean"},
            "mode": {"enum": ["fast", "safe"]},
            "share": {"type": "number"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        },
        "required": ["on", "mode"],
        "additionalProperties": False,
    },
    "find": {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "near": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "required": ["near"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}},
}
_ANSWER = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
TEXT_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _ANSWER}}
_WORDS = "the server returns a list of files and reads one line at a time".split()


class Answer(NamedTuple):
    """An answer without its ids. `calls` are names and arguments as text."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    finish_reason: str
    usage: dict[str, Any]


def drawn_chat(seed: int, openings: dict[str, float], closers: dict[str, float]) -> dict[str, Any]:
    """The body of a request, with the biases of tokens: half of the chats have those of both."""
    draw = random.Random(seed)
    names = draw.sample(list(SCHEMAS), draw.randint(1, len(SCHEMAS)))
    named = {"type": "function", "function": {"name": draw.choice(names)}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": " ".join(draw.choices(_WORDS, k=4))}],
        "tools": [_tool(name, strict=draw.random() < 0.3) for name in names],
        "tool_choice": draw.choice(["auto", "auto", "required", "required", "none", named]),
        "parallel_tool_calls": draw.random() < 0.5,
        "temperature": draw.choice([0, 0.7, 1, 1.5]),
        "seed": seed,
        "max_tokens": draw.choice([8, 48, 96]),
    }
    body["logit_bias"] = closers | (openings if draw.random() < 0.5 else {})
    if draw.random() < 0.15:
        body["response_format"] = TEXT_FORMAT
    return body


def whole(answer: dict[str, Any]) -> Answer:
    """An answer that came whole."""
    (choice,) = answer["choices"]
    message = choice["message"]
    called = [each["function"] for each in message.get("tool_calls", [])]
    return Answer(
        text=message["content"] or "",
        reasoning=message.get("reasoning_content", ""),
        calls=[(each["name"], each["arguments"]) for each in called],
        finish_reason=choice["finish_reason"],
        usage=_usage(answer["usage"]),
    )


def put_together(stream: str) -> Answer:
    """An answer that came as a stream with its usage. A last call that is cut is none."""
    *chunks, last = _chunks(stream)
    text = reasoning = finish = ""
    calls: list[list[str]] = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            assert ("id" in call) == (call["index"] == len(calls))
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"].get("arguments", "")
        finish = choice["finish_reason"] or finish
    if finish == "length" and calls and not is_json(calls[-1][1]):
        del calls[-1]
    pairs = [(name, arguments) for name, arguments in calls]
    return Answer(text, reasoning, pairs, finish, _usage(last["usage"]))


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _tool(name: str, *, strict: bool) -> dict[str, Any]:
    function = {"name": name, "parameters": SCHEMAS[name], "strict": strict}
    return {"type": "function", "function": function}


def _chunks(stream: str) -> Iterator[dict[str, Any]]:
    for event in stream.strip().split("\n\n"):
        if (data := event.removeprefix("data: ")) != "[DONE]":
            yield json.loads(data)


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Less what depends on earlier prompts."""
    return {key: value for key, value in usage.items() if key != "prompt_tokens_details"}
