"""Tools and earlier calls in the forms that a template takes, also one that knows of none."""

import re
from typing import Any

import pytest

from server.templates import formats
from server.templates.loaded_template import UnfitFieldError
from server.templates.protocol import ChatTemplate, Conversation, FoundFormat, Rendered
from server.templates.served_template import ServedTemplate
from tests.server.templates.test_turn_formats import HERMES_CALL, HERMES_FORM, JSON, NINE, template

Message = dict[str, Any]


def served(source: str) -> ServedTemplate:
    return ServedTemplate(ChatTemplate(source=source, file="here", tokens={}))


def prompt(source: str, *messages: Message, **fields: Any) -> str:
    return served(source).rendered(Conversation(messages=list(messages), **fields)).prompt


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
    assert slow.rendered(Conversation(messages=[USER])).prompt.startswith("<|user|>Hello")


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
NO_SYSTEM = PLAIN.replace("in messages", "in messages if m.role != 'system'")
WRITTEN = '<tool_call>\n{"name": "get", "arguments": {"a": "é"}}\n</tool_call>'
SYSTEM: Message = {"role": "system", "content": "Be brief."}


def described(call: str) -> str:
    """A pattern of the text that describes TOOL, and how it is called."""
    tool = re.escape(
        '<tools>\n{"type": "function", "function": {"name": "get", "parameters": {}}}\n'
    )
    return rf"(?s:# Tools.*{tool}</tools>.*in this form:\n{re.escape(call)})"


TAGGED = '<tool_call>\n{"name": "<function-name>", "arguments": <args-json-object>}\n</tool_call>'
BARE = '{"name": "<function-name>", "parameters": <args-json-object>}'
ONE_BARE = template(
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    '{"name": "{{ c.name }}", "parameters": ' + JSON + "}"
)


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (PLAIN, [USER], rf"\[system: {described(TAGGED)}\]\[user: Hello\]"),
        (PLAIN, [SYSTEM, USER], rf"\[system: Be brief\.\n\n{described(TAGGED)}\]\[user: Hello\]"),
        (NO_SYSTEM, [USER], rf"\[user: {described(TAGGED)}\n\nHello\]"),
        (
            ONE_BARE,
            [USER],
            rf"<\|system\|>{described(BARE)}<\|end\|>\n<\|user\|>Hello.*\n<\|bot\|>",
        ),
    ],
)
def test_tools_that_a_template_leaves_out_are_described(
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


GRANITE = "{# <|tool_call|> JSON list #}"


def test_calls_that_a_template_leaves_out_are_text_and_results_its_own() -> None:
    text = prompt(GRANITE + PLAIN, USER, calling("a", "b"), result("a"), result("b"))
    call = '{"name": "get", "arguments": {"a": "é"}}'
    assert text == (f"[user: Hello][assistant: <|tool_call|>[{call}, {call}]][tool: 42][tool: 42]")


def test_calls_may_be_written_only_beside_tools() -> None:
    source = "{{ tools | tojson if tools }}{% if not tools %}" + template() + "{% else %}"
    source += template(HERMES_CALL) + "{% endif %}"
    talk = [USER, calling("a"), result("a")]
    for tools in ([TOOL], None):
        text = prompt(source, *talk, tools=tools)
        assert text.count(WRITTEN) == 1
        assert text.startswith("[{" if tools else "<|user|>")


def test_tools_that_cannot_be_called_are_refused_by_name() -> None:
    with pytest.raises(UnfitFieldError, match="begin like text") as refused:
        prompt(template("{{ c.name }} with " + JSON), USER, tools=[TOOL])
    assert refused.value.field == "tools"


def test_calls_are_written_so_that_a_result_may_follow() -> None:
    """Some forms of a message are taken in the last place only."""
    refuses = "{% if m.tool_calls and not loop.last and m.content is not defined %}"
    refuses += "{{ raise_exception('no content') }}{% endif %}"
    loop = "{% for m in messages %}"
    source = template(HERMES_CALL).replace(loop, loop + refuses)
    assert WRITTEN in prompt(source, USER, calling("a"), result("a"))


THINKS: Message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
SWITCHED = PLAIN.replace("{{ m.content", "{{ m.reasoning_content if keep }}{{ m.content")


@pytest.mark.parametrize(
    ("messages", "fields", "expected", "field"),
    [
        ([USER, THINKS, USER, THINKS], {}, "", "messages[1].reasoning_content"),
        ([SYSTEM, USER, THINKS | {"reasoning": "Hm."}], {}, "", "messages[2].reasoning_content"),
        ([USER, {"role": "assistant", "reasoning": "Hm."}], {}, "", "messages[1].reasoning"),
        ([USER, THINKS], {"variables": {"keep": False}}, "", "messages[1].reasoning_content"),
        ([USER, THINKS], {"variables": {"keep": True}}, "Hm.", ""),
        ([USER, THINKS, USER], {"tools": [TOOL]}, "", "messages[1].reasoning_content"),
        ([USER, THINKS | {"reasoning_content": ""}], {}, "", ""),
    ],
)
def test_reasoning_that_no_place_has_may_be_left_out(
    messages: list[Message], fields: dict[str, Any], expected: str, field: str
) -> None:
    """It is named as the client has it, also if tools are described before it."""
    talk = Conversation(messages=messages, may_lose_reasoning=True, **fields)
    rendered = served(SWITCHED).rendered(talk)
    assert rendered.left_out == field
    assert ("Hm." in rendered.prompt) == bool(expected)
    without = [{"content": "", **message} for message in messages]
    for message in without:
        for name in ("reasoning_content", "reasoning"):
            message.pop(name, None)
    if not expected:
        assert rendered == Rendered(prompt(SWITCHED, *without, **fields), field)


def test_reasoning_of_earlier_turns_is_the_template_s_to_leave_out() -> None:
    last = PLAIN.replace("{{ m.content", "{{ m.reasoning_content if loop.last }}{{ m.content")
    talk = Conversation(messages=[USER, THINKS, USER], may_lose_reasoning=True)
    rendered = served(last).rendered(talk)
    assert (rendered.left_out, "Hm." in rendered.prompt) == ("", False)


def test_reasoning_is_refused_where_it_may_not_be_left_out() -> None:
    with pytest.raises(UnfitFieldError) as refused:
        prompt(SWITCHED, USER, THINKS)
    assert refused.value.field == "messages[1].reasoning_content"
