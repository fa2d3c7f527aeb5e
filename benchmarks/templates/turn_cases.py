"""Turns with calls of tools, and the schemas of the tools that they call."""

from typing import Any, NamedTuple

from server.turns.turn_parser import Call


class Case(NamedTuple):
    """A turn."""

    calls: list[Call]
    text: str = ""
    reasoning: str = ""


def _schema(**types: Any) -> dict[str, Any]:
    properties = {
        name: {"description": f"The {name}.", **({"type": of} if isinstance(of, str) else of)}
        for name, of in types.items()
    }
    return {"type": "object", "properties": properties, "required": []}


SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": _schema(city="string", days="integer", celsius="boolean", scale="number"),
    "get": _schema(path="string"),
    "write_file": _schema(path="string", content="string"),
    "search-all": _schema(
        query="string",
        tags={"type": "array", "items": {"type": "string"}},
        filter={"type": "object", "additionalProperties": True, "properties": {}},
        either={"anyOf": [{"type": "integer"}, {"type": "string"}]},
        limit={"type": ["integer", "null"]},
    ),
    "ping": _schema(),
}


def _write(content: str) -> Case:
    return Case([Call("write_file", {"path": "a.txt", "content": content})])


_WEATHER = Call("get_weather", {"city": "Rome", "days": 3, "celsius": True, "scale": 1.5})
_STRINGS = {
    "quotes": 'He said "no", and it\'s fine',
    "backslashes": 'a\\b\\n\\"c',
    "lines": "def f(x):\n    return [x, (1, 2)]\n\n\nprint(f(1))",
    "space around": "\n  indented\n\n",
    "no text": "",
    "unicode": "Zürich 東京 🌍 — “ü”",
    "a number": "12",
    "a word of JSON": "true",
    "JSON": '{"name": "get", "arguments": {"path": "x"}}',
    "a list": "[1, 2]",
    "braces": "}} ]] {{ )) (",
    "tags": "<b>bold</b> & <parameter=x> </p>",
    "a call in Hermes' form": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "a call in tags": "<function=get>\n<parameter=path>\nx\n</parameter>\n</function>",
    "a value in tags": "</arg_value>\n<arg_key>path</arg_key>",
    "a marker of reasoning": "<think>no</think>",
    "special tokens": "<|im_end|><|eot_id|></s>",
    "like members": "x, path=y), ping()",
}

CASES: dict[str, Case] = {
    "one": Case([_WEATHER]),
    "one with text": Case([_WEATHER], text="Let me look."),
    "one with reasoning": Case([_WEATHER], reasoning="They ask for < 4 days."),
    "all": Case([_WEATHER, Call("ping", {})], "I look: a < b.", "So: [1] {2}."),
    "no arguments": Case([Call("ping", {})]),
    "two": Case([_WEATHER, Call("get", {"path": "/a/b"})]),
    "two without arguments": Case([Call("ping", {}), Call("ping", {})]),
    "three": Case([Call("get", {"path": str(n)}) for n in range(3)]),
    "numbers": Case([Call("get_weather", {"days": -7, "scale": 1e-07, "city": "x"})]),
    "false": Case([Call("get_weather", {"celsius": False, "city": "x"})]),
    "nested": Case(
        [Call("search-all", {"query": "q", "filter": {"a": {"b": [1, {"c": None}], "d": "e"}}})]
    ),
    "nested with booleans": Case([Call("search-all", {"filter": {"on": True, "off": [False]}})]),
    "a list of strings": Case([Call("search-all", {"query": "q", "tags": ["x", "y z", "7"]})]),
    "empty containers": Case([Call("search-all", {"tags": [], "filter": {}})]),
    "quotes in a list": Case([Call("search-all", {"tags": ["it's", 'a "b"']})]),
    "either a number": Case([Call("search-all", {"query": "q", "either": 5})]),
    "either a string": Case([Call("search-all", {"query": "q", "either": "five"})]),
    "null": Case([Call("search-all", {"query": "q", "limit": None})]),
    **{f"a string with {name}": _write(text) for name, text in _STRINGS.items()},
}
