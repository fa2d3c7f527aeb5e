"""What a template gets of messages, and what of them is refused because it would leave it out."""

from typing import Any
from unittest.mock import Mock

import pytest
from jinja2.exceptions import TemplateError

from server.templates.loaded_template import LeftOutError, LoadedTemplate
from server.templates.protocol import ChatTemplate, Conversation

Message = dict[str, Any]


def each(body: str) -> str:
    return "{% for m in messages %}" + body + "{% endfor %}"


CHATML = each("[{{ m.role + ': ' + m.content }}]")
ANY_FORM = each(
    "[{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}]"
)
STRING_OR_NOTHING = each("{% if m.content is string %}[{{ m.content }}]{% endif %}")
PARTS_ONLY = each("[{{ m.role }}: {% for p in m.content %}{{ p.text }}{% endfor %}]")
CALLS = each(
    "[{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<{{ c.function.name }} ARGUMENTS>{% endfor %}]"
)
AS_JSON = CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")


def loaded(source: str) -> LoadedTemplate:
    return LoadedTemplate(ChatTemplate(source=source, file="here", tokens={}))


def prompt(source: str, *messages: Message, **fields: Any) -> str:
    return loaded(source).prompt(Conversation(messages=list(messages), **fields))


def left_out(source: str, *messages: Message, **fields: Any) -> str:
    """The field that is refused."""
    with pytest.raises(LeftOutError) as caught:
        prompt(source, *messages, **fields)
    return caught.value.field


def said(role: str, *texts: str, **fields: Any) -> Message:
    """A message with a string, or with several parts."""
    content: Any = [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": texts[0] if len(texts) == 1 else content, **fields}


def calling(*names: str, **fields: Any) -> Message:
    calls = [{"type": "function", "function": {"name": n, "arguments": '{"a": 1}'}} for n in names]
    return {"role": "assistant", "tool_calls": calls, **fields}


USER, ANSWER = said("user", "Hello"), said("assistant", "Hi")
RESULT: Message = {"role": "tool", "content": "42"}


@pytest.mark.parametrize(
    ("source", "string", "several"),
    [
        pytest.param(CHATML, "[user: a]", "[user: a\nb]", id="strings, or an error"),
        pytest.param(each("[{{ m.content }}]"), "[a]", "[a\nb]", id="strings, or a list"),
        pytest.param(each("{{ m.content | tojson }}"), '"a"', '"a\\nb"', id="json"),
        pytest.param(PARTS_ONLY, "[user: a]", "[user: ab]", id="parts"),
        pytest.param(ANY_FORM, "[user: a]", "[user: <a><b>]", id="both"),
        pytest.param(each("[{{ m.content[0].text }}]"), "[a]", "[a\nb]", id="one part"),
        pytest.param(STRING_OR_NOTHING, "[a]", "[a\nb]", id="strings, or nothing"),
    ],
)
def test_content_comes_in_a_form_that_the_template_takes(source, string, several):
    assert prompt(source, said("user", "a")) == string
    assert prompt(source, said("user", "a", "b")) == several


def test_each_role_has_its_own_form():
    source = each(
        "{% if m.role == 'system' %}{{ 'S' + m.content }}"
        "{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}"
    )
    written = prompt(source, said("system", "a", "b"), USER, said("user", "c", "d"))
    assert written == "Sa\nb<Hello><c><d>"


@pytest.mark.parametrize("text", ["Water", "Water and "])
def test_a_final_message_in_parts_is_continued(text):
    talk = [USER, said("assistant", "Well.", text)]
    assert prompt(ANY_FORM, *talk, continue_final_message=True).endswith(f"<Well.><{text}")
    assert prompt(CHATML, *talk, continue_final_message=True).endswith(f": Well.\n{text}")
    last = said("assistant", text)
    assert prompt(PARTS_ONLY, USER, last, continue_final_message=True).endswith(f": {text}")


KNOWS_NO_DEVELOPER = each(
    "{# the developer decides #}{% set developer_preamble = 'developer' %}"
    "{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}: {{ m.content }}]{% endif %}"
)
KNOWS_DEVELOPERS = "{% if messages[0].role == 'developer' %}# {% endif %}" + CHATML


@pytest.mark.parametrize(
    ("source", "written"),
    [
        pytest.param(KNOWS_NO_DEVELOPER, "[system: a][user: Hello][system: b]", id="left out"),
        pytest.param(CHATML, "[system: a][user: Hello][system: b]", id="as any role"),
        pytest.param(KNOWS_DEVELOPERS, "# [developer: a][user: Hello][system: b]", id="known"),
    ],
)
def test_a_developer_is_a_system_where_the_template_does_not_know_it(source, written):
    assert prompt(source, said("developer", "a"), USER, said("developer", "b")) == written


def test_a_developer_is_refused_where_there_is_no_system_either():
    source = each("{% if m.role == 'user' %}{{ m.content }}{% endif %}")
    assert left_out(source, said("developer", "a"), USER) == "messages[0].role"


SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role in ['user', 'assistant'] %}[{{ m.content }}]{% endfor %}"
)


def test_a_role_may_be_written_in_one_place_only():
    assert prompt(SYSTEM_FIRST, said("system", "a"), USER) == "[a][Hello]"
    assert left_out(SYSTEM_FIRST, USER, ANSWER, said("system", "a"), USER) == "messages[2].role"
    with pytest.raises(LeftOutError, match="leaves out a later message of role 'critic'"):
        prompt(SYSTEM_FIRST, USER, said("critic", "a"))
    assert left_out(SYSTEM_FIRST, USER, RESULT) == "messages[1].role"
    assert prompt(SYSTEM_FIRST, USER, said("critic", "")) == "[Hello]", "nothing is lost"


@pytest.mark.parametrize(
    "change", ["upper", "trim | e", "reverse | list | join | reverse", "truncate(9, True)"]
)
def test_text_that_a_template_changes_is_not_refused(change):
    source = each("{{ m.content | CHANGE }};".replace("CHANGE", change))
    for role in ("user", "critic"):
        assert prompt(source, USER, ANSWER, said(role, " <A> & 'B' of a long text "))


LAST_SYSTEM = """\
{% set seen = namespace(text='') %}
{% for m in messages if m.role == 'system' %}{% set seen.text = m.content %}{% endfor %}
{% for m in messages if m.role != 'system' %}
{% if m.role == 'user' and loop.last %}({{ seen.text }}){% endif %}
{{ m.content }}
{% endfor %}"""


def test_a_message_may_be_left_out_because_of_others():
    assert "(a)" in prompt(LAST_SYSTEM, said("system", "a"), USER, ANSWER, USER)
    two = [said("system", "a"), said("system", "b"), USER]
    assert left_out(LAST_SYSTEM, *two) == "messages[0].role"
    assert left_out(LAST_SYSTEM, said("system", "a")) == "messages[0].role"
    assert left_out(LAST_SYSTEM, said("system", "a"), USER, ANSWER) == "messages[0].role"


def test_a_result_may_be_written_only_behind_its_call():
    source = """\
{% for m in messages %}{% if m.role != 'tool' %}
[{{ m.content or m.tool_calls[0].function | tojson }}
{% if m.tool_calls and not loop.last %}{{ loop.nextitem.content }}{% endif %}]{% endif %}
{% endfor %}"""
    assert "42" in prompt(source, USER, calling("f"), RESULT)
    assert left_out(source, USER, RESULT) == "messages[1].role"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": 1}'),
        ("{{ c.function.arguments }}", '{"a": 1}'),
        ("{{ '' + c.function.arguments }}", '{"a": 1}'),
        ("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}", "a=1"),
    ],
)
def test_arguments_come_as_an_object_or_as_text(arguments, written):
    assert f"<f {written}>" in prompt(CALLS.replace("ARGUMENTS", arguments), USER, calling("f"))


@pytest.mark.parametrize("test", ["not defined", "none", "string"])
def test_an_assistant_without_text_has_the_content_that_calls_need(test):
    source = each(
        f"{{% if m.tool_calls and m.content is {test} %}}"
        "{{ m.tool_calls[0].function | tojson }}"
        "{% else %}{{ m.content }}{% endif %}"
    )
    for call in (calling("f"), calling("f", content="")):
        assert '{"name": "f", "arguments": {"a": 1}}' in prompt(source, USER, call)


def test_calls_that_are_left_out():
    talk = [USER, calling("f"), RESULT]
    assert left_out(each("{{ m.content }}"), *talk) == "messages[1].tool_calls"
    first = each("{{ m.content or m.tool_calls[0].function | tojson }}")
    assert '"name": "f"' in prompt(first, *talk)
    assert left_out(first, USER, calling("f", "g")) == "messages[1].tool_calls[1]"
    assert left_out(first, USER, calling("f", content="Wait.")) == "messages[1].content"
    assert "[assistant: Wait.<g " in prompt(AS_JSON, USER, calling("g", content="Wait."))


STRICT = """\
{% for m in messages %}
{% if m.role == 'system' and loop.index0 %}{{ raise_exception('system must be first') }}{% endif %}
{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}
{% if m.tool_calls and m.tool_calls[0].id | length != 9 %}{{ raise_exception('bad id') }}{% endif %}
{% if m.role == 'tool' and loop.previtem.role == 'user' %}{{ raise_exception('alone') }}{% endif %}
{{ m.content or m.tool_calls[0].function | tojson }}
{% endfor %}"""


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        ([USER, said("system", "a")], "system must be first"),
        ([USER, calling("f")], "bad id"),
        ([USER, calling("f", "g")], "one call only"),
        ([USER, RESULT], "alone"),
    ],
)
def test_a_template_that_refuses_says_so_itself(talk, reason):
    with pytest.raises(TemplateError, match=reason):
        prompt(STRICT, *talk)


def test_names_are_written_or_refused():
    source = each("{{ m.name if m.role == 'user' }}: {{ m.content }}")
    assert prompt(source, said("user", "a", name="Ada")) == "Ada: a"
    assert left_out(source, USER, said("assistant", "a", name="Bob")) == "messages[1].name"
    assert left_out(CHATML, said("user", "a", name="Ada")) == "messages[0].name"
    assert left_out(CHATML, said("user", "a", name="assistant")) == "messages[0].name"
    assert prompt(CHATML, said("user", "a", name="user")) == prompt(CHATML, said("user", "a"))
    assert prompt(source, said("user", "a", name="user")) == "user: a"
    assert prompt(AS_JSON, USER, calling("f"), RESULT | {"name": "f"}), "its call has the name"


@pytest.mark.parametrize(
    "name", ["reasoning_content", "reasoning", "thinking", "thought", "tool_plan"]
)
@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning"])
def test_reasoning_comes_under_every_name(name, sent):
    source = each(f"<{{{{ m.{name} }}}}>{{{{ m.content }}}}")
    assert "<hm>a" in prompt(source, USER, said("assistant", "a", **{sent: "hm"}), USER)


def test_reasoning_is_refused_only_where_no_place_has_it():
    thinks = said("assistant", "a", reasoning="hm")
    assert left_out(CHATML, USER, thinks) == "messages[1].reasoning"
    last = each("{{ m.reasoning_content if loop.last }}{{ m.content }}")
    assert "hm" in prompt(last, USER, thinks)
    assert "hm" not in prompt(last, USER, thinks, USER)
    switched = each("{{ m.reasoning_content if keep }}{{ m.content }}")
    assert left_out(switched, USER, thinks) == "messages[1].reasoning"
    assert "hm" in prompt(switched, USER, thinks, variables={"keep": True})


def test_an_unusual_role_and_an_unusual_order_are_probed_once(monkeypatch):
    template = loaded(CHATML)
    render = Mock(side_effect=template.render)
    monkeypatch.setattr(template, "render", render)
    for number in range(3):
        render.reset_mock()
        template.prompt(Conversation(messages=[USER, said("critic", str(number)), USER]))
        assert render.call_count == 1 if number else render.call_count > 2


def test_too_many_roles_at_once_are_refused():
    with pytest.raises(TemplateError, match="more than 64 roles"):
        prompt(CHATML, *(said(f"role{number}", "a") for number in range(65)))


def test_what_could_not_be_probed_in_time_counts_as_written():
    messages = [said("user", "a", "b", name="Ada")]
    unprobed = loaded(CHATML).manners_with({}, seconds=-1.0)
    assert unprobed.checked(messages) == [said("user", "a\nb", name="Ada")]
