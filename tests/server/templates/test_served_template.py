"""Tools and earlier calls in the forms that a template takes, also one that knows of none."""

import re
from typing import Any

import pytest

from server.templates import formats
from server.templates.loaded_template import UnfitFieldError
from server.templates.protocol import ChatTemplate, Conversation, FoundFormat
from server.templates.served_template import ServedTemplate
from server.turns.known_formats import HERMES
from server.turns.turn_parser import Call, TurnParser, calls_of
from tests.server.templates.test_turn_formats import HERMES_CALL, HERMES_FORM, JSON, NINE, template

Message = dict[str, Any]


def served(source: str) -> ServedTemplate:
    return ServedTemplate(ChatTemplate(source=source, file="here", tokens={}))


def prompt(source: str, *messages: Message, **fields: Any) -> str:
    return served(source).prompt(Conversation(messages=list(messages), **fields))


USER: Message = {"role": "user", "content": "Hello"}
TOOL: Message = {"type": "function", "function": {"name": "get", "parameters": {}}}


def calling(*ids: str, **fields: Any) -> Message:
    function = {"name": "get", "arguments": '{"a": "é"}'}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "tool_calls": calls, **fields}


def result(call_id: str, content: str = "42") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "get"}


def test_a_template_tells_the_format_of_its_turns_or_why_there_is_none() -> None:
    assert served(template(HERMES_CALL)).found == FoundFormat(HERMES_FORM, "learnt")
    assert served(template()).found == FoundFormat(HERMES_FORM, "table")
    reason = "its calls of tools begin like text"
    assert served(template("{{ c.name }} with " + JSON)).found == FoundFormat(reason=reason)


def test_one_that_is_too_slow_to_learn_from_renders_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(formats, "_LEARNING_S", -1.0)
    slow = served(template(HERMES_CALL))
    assert slow.found.form is None
    assert "too slow" in slow.found.reason
    assert slow.prompt(Conversation(messages=[USER])).startswith("<|user|>Hello")


WITH_IDS = "<call>{{ t.id }}/{{ c.name }}<args>" + JSON + "</call>"
RESULTS = (
    "{% for m in messages %}{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)
FUNCTIONS = template("<call>{{ t.id }}<args>" + JSON + "</call>")
TALK = [USER, calling("call_1", "A1b2C3d4E"), result("A1b2C3d4E"), calling("x"), result("call_1"),
        result("x")]  # fmt: skip


def ids_in(text: str) -> tuple[list[str], list[str]]:
    """Those of the calls, and those of the results."""
    return re.findall(r"<call>(.*?)(?:/get)?<args>", text), re.findall(r"\((.*?)\)", text)


def test_ids_are_of_the_form_that_the_template_takes() -> None:
    calls, results = ids_in(prompt(RESULTS + template(NINE + WITH_IDS), *TALK))
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in calls)
    assert len(set(calls)) == 3
    assert calls[1] == "A1b2C3d4E"
    assert results == [calls[1], calls[0], calls[2]]
    assert ids_in(prompt(RESULTS + template(NINE + WITH_IDS), *TALK[:3]))[0] == calls[:2]


def test_ids_may_be_made_of_names_and_numbers() -> None:
    source = RESULTS + template("<call>{{ t.id }}<args>" + JSON + "</call>")
    calls, results = ids_in(prompt(source, *TALK))
    assert calls == ["functions.get:0", "functions.get:1", "functions.get:2"]
    assert results == ["functions.get:1", "functions.get:0", "functions.get:2"]
    own = [USER, calling("functions.get:7"), result("functions.get:7")]
    assert ids_in(prompt(source, *own)) == (["functions.get:7"], ["functions.get:7"])


def test_any_ids_stay_as_they_are() -> None:
    calls, results = ids_in(prompt(RESULTS + template(WITH_IDS), *TALK))
    assert calls == ["call_1", "A1b2C3d4E", "x"]
    assert results == ["A1b2C3d4E", "call_1", "x"]


PLAIN = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
WRITTEN = '<tool_call>\n{"name": "get", "arguments": {"a": "é"}}\n</tool_call>'
DESCRIBED = r"(?s:# Tools.*<tools>\n\{.*\"get\".*\}\n</tools>.*<tool_call>.*</tool_call>)"
SYSTEM: Message = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (PLAIN, [USER], rf"\[system: {DESCRIBED}\]\[user: Hello\]"),
        (PLAIN, [SYSTEM, USER], rf"\[system: Be brief\.\n\n{DESCRIBED}\]\[user: Hello\]"),
        (NO_SYSTEM, [USER], rf"\[user: {DESCRIBED}\n\nHello\]"),
    ],
)
def test_tools_are_described_to_a_template_that_knows_none(
    source: str, messages: list[Message], expected: str
) -> None:
    assert re.fullmatch(expected, prompt(source, *messages, tools=[TOOL]))


def test_calls_and_results_are_text_to_a_template_that_knows_none() -> None:
    talk = [USER, calling("a", "b", content="Wait."), result("a"), result("b", "43"), USER]
    assert prompt(PLAIN, *talk) == (
        f"[user: Hello][assistant: Wait.\n{WRITTEN}\n{WRITTEN}]"
        "[user: <tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response>]"
        "[user: Hello]"
    )


def test_calls_are_written_to_be_read_again() -> None:
    text = prompt(PLAIN, USER, calling("a", "b")).partition("[assistant: ")[2].removesuffix("]")
    parser = TurnParser(HERMES, {"get": {}})
    events = [*parser.feed(text), *parser.finish()]
    assert calls_of(events) == [Call("get", {"a": "é"})] * 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (template(HERMES_CALL), "leaves out tools"),
        (template("{{ c.name }} with " + JSON), "begin like text"),
    ],
)
def test_tools_that_cannot_be_called_are_refused_by_name(source: str, reason: str) -> None:
    with pytest.raises(UnfitFieldError, match=reason) as refused:
        prompt(source, USER, tools=[TOOL])
    assert refused.value.field == "tools"


def test_calls_that_are_written_only_beside_tools() -> None:
    source = "{{ tools | tojson if tools }}{% if not tools %}" + template() + "{% else %}"
    source += template(HERMES_CALL) + "{% endif %}"
    talk = [USER, calling("a"), result("a")]
    assert WRITTEN in prompt(source, *talk, tools=[TOOL])
    with pytest.raises(UnfitFieldError) as refused:
        prompt(source, *talk)
    assert refused.value.field == "messages[1].tool_calls"
