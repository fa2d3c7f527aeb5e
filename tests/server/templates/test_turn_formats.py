"""Formats of turns by templates of our own, one a feature, and where they are from."""

from typing import Any

import pytest

from engine_core.turn_format import (
    JSON_TYPES,
    CallFormat,
    Members,
    Reasoning,
    Slot,
    TurnFormat,
    Value,
)
from server.templates.formats import format_of
from server.templates.learnt_format import NotLearntError, learn
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate
from server.turns.declared_format import NotDeclaredError, declared_format
from server.turns.known_formats import HARMONY, HERMES

NAME, ARGUMENTS, ID, INDEX = Slot("name"), Slot("arguments"), Slot("id"), Slot("index")
LITERALS = tuple(name for name in JSON_TYPES if name != "string")


def template(
    call: str = "", *, opening: str = "", between: str = "", close: str = "",
    answer: str = "{{ m.content or '' }}", prompt: str = "",
) -> str:  # fmt: skip
    """The source of a template that writes calls so, with `c` for a call's function."""
    calls = (
        f"{{% if m.tool_calls %}}{opening}{{% for t in m.tool_calls %}}{{% set c = t.function %}}"
        f"{call}{{% if not loop.last %}}{between}{{% endif %}}{{% endfor %}}{close}{{% endif %}}"
    )
    return (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>"
        f"{answer}{calls if call else ''}<|end|>\n"
        "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}<|bot|>{prompt}{{% endif %}}"
    )


def loaded(source: str, declared: dict[str, Any] | None = None) -> LoadedTemplate:
    return LoadedTemplate(
        ChatTemplate(source=source, file="here", tokens={}, response_template=declared)
    )


def each_argument(written: str, between: str = "") -> str:
    """The arguments of `c`, with `k` for the key and `v` for the value."""
    separator = f"{{% if not loop.last %}}{between}{{% endif %}}"
    return f"{{% for k, v in c.arguments.items() %}}{written}{separator}{{% endfor %}}"


JSON = "{{ c.arguments | tojson }}"
HERMES_CALL = '\n<tool_call>\n{"name": "{{ c.name }}", "arguments": ' + JSON + "}\n</tool_call>"
HERMES_FORM = TurnFormat(calls=HERMES.calls)
REFUSES_TWO = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
NINE = "{% if t.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
RAW = "{{ v if v is string else v | tojson }}"
PYTHON = "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}"
OWN = """\
{%- macro w(v) -%}
{%- if v is string -%} <q>{{ v }}<q>
{%- elif v is mapping -%}
    {{ '{' }}
    {%- for k, x in v.items() -%} {{ k }}:{{ w(x) }}{{ ',' if not loop.last }} {%- endfor -%}
    {{ '}' }}
{%- elif v is iterable -%}
    [{%- for x in v -%} {{ w(x) }}{{ ',' if not loop.last }} {%- endfor -%}]
{%- else -%} {{ v | tojson }}
{%- endif -%}
{%- endmacro -%}
"""
THOUGHTS = (
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}"
)


def members(*values: Value, before: str = "", between: str = "") -> Members:
    return Members(before=before, between=between, values=values)


def calls(*call: str | Slot, **fields: Any) -> TurnFormat:
    return TurnFormat(calls=(CallFormat(call=call, **fields),))


LEARNT = {
    "JSON in tags": (template(HERMES_CALL), HERMES_FORM),
    "one call of JSON, without a marker": (
        template(REFUSES_TWO + '{"name": "{{ c.name }}", "parameters": ' + JSON + "}"),
        calls('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}", many=False),
    ),
    "a list with ids of nine letters": (
        template(
            NINE + '{"name": "{{ c.name }}", "arguments": ' + JSON + ', "id": "{{ t.id }}"}',
            opening="[CALLS] [", between=", ", close="]",
        ),
        TurnFormat(
            calls=(
                CallFormat(
                    open="[CALLS] [",
                    call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                    between=", ",
                    close="]",
                ),
            ),
            ids="nine letters",
        ),
    ),
    "numbers of calls from one": (
        template(
            '<call n="{{ loop.index }}">{{ c.name }}<args>' + JSON + "</call>",
            opening="<calls>", close="</calls>",
        ),
        calls('<call n="', INDEX, '">', NAME, "<args>", ARGUMENTS, "</call>",
              open="<calls>", close="</calls>", starts_from=1),
    ),
    "names in ids": (
        template("<call>{{ t.id }}<args>" + JSON + "</call>"),
        TurnFormat(
            calls=(
                CallFormat(
                    call=("<call>functions.", NAME, ":", INDEX, "<args>", ARGUMENTS, "</call>")
                ),
            ),
            ids="functions.name:index",
        ),
    ),
    "raw strings in tags": (
        template("<call={{ c.name }}>\n" + each_argument("<p={{ k }}>\n" + RAW + "\n</p>\n")
                 + "</call>\n"),
        calls("<call=", NAME, ">\n", ARGUMENTS, "</call>", members=members(
            Value(types=LITERALS, open=">\n", close="\n</p>\n", dialect="json"),
            Value(types=("string",), open=">\n", close="\n</p>\n"), before="<p=")),
    ),
    "strings marked as such": (
        template('<call n="{{ c.name }}">' + each_argument(
            '<p n="{{ k }}" s="{{ 1 if v is string else 0 }}">' + RAW + "</p>") + "</call>"),
        calls('<call n="', NAME, '">', ARGUMENTS, "</call>", members=members(
            Value(types=LITERALS, open='" s="0">', close="</p>", dialect="json"),
            Value(types=("string",), open='" s="1">', close="</p>"), before='<p n="')),
    ),
    "text with markup in a section of its own": (
        template("<call={{ c.name }}>" + each_argument(
            "<p={{ k }}>{% if v is string and '<' in v %}<![CDATA[{{ v }}]]>{% else %}" + RAW
            + "{% endif %}</p>") + "</call>"),
        calls("<call=", NAME, ">", ARGUMENTS, "</call>", members=members(
            Value(types=LITERALS, open=">", close="</p>", dialect="json"),
            Value(types=("string",), open=">", close="</p>"),
            Value(types=("string",), open="><![CDATA[", close="]]></p>"), before="<p=")),
    ),
    "Python's calls": (
        template("{{ c.name }}(" + each_argument("{{ k }}=" + PYTHON, ", ") + ")",
                 opening="[", between=", ", close="]"),
        calls(NAME, "(", ARGUMENTS, ")", open="[", between=", ", close="]", members=members(
            Value(types=("string", *LITERALS), open="=", dialect="python"), between=", ")),
    ),
    "quotes of its own": (
        OWN + template("<call>{{ c.name }}{{ '{' }}" + each_argument("{{ k }}:{{ w(v) }}", ",")
                       + "}</call>"),
        calls("<call>", NAME, "{", ARGUMENTS, "}</call>", members=members(
            Value(types=("string", *LITERALS), open=":", dialect="gemma", quote="<q>"),
            between=",")),
    ),
    "reasoning": (
        template(HERMES_CALL, answer=THOUGHTS),
        TurnFormat(reasoning=Reasoning(open="<think>", close="</think>"), calls=HERMES.calls),
    ),
    "reasoning that the prompt opens": (
        template(HERMES_CALL, answer="<think>\n" + THOUGHTS.replace("<think>\n", "")
                 .replace("{% endif %}", "{% else %}</think>{% endif %}"), prompt="<think>\n"),
        TurnFormat(reasoning=Reasoning(open="<think>", close="</think>"), calls=HERMES.calls),
    ),
    "markers around text": (
        template(
            "<|do|>" + '{"name": "{{ c.name }}", "arguments": ' + JSON + "}<|done|>",
            answer="{% if m.content %}<|say|>{{ m.content }}<|said|>{% endif %}",
        ),
        TurnFormat(
            text_markers=("<|say|>", "<|said|>"),
            calls=(
                CallFormat(
                    call=('<|do|>{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}<|done|>")
                ),
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNT)
def test_a_format_is_learnt_from_what_the_template_writes(name: str) -> None:
    source, expected = LEARNT[name]
    assert learn(loaded(source)) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (template(), "leaves out calls"),
        ("{{ messages[2:] and raise_exception('no') }}{{ messages[0].content }}", "refuses|leaves"),
        (template("{{ c.name }} with " + JSON), "begin like text"),
        (
            template("<call={{ c.name }}>" + each_argument("<{{ k }}>{{ v | length }}")),
            "leaves out",
        ),
        (template("<call={{ c.name }}>" + each_argument("{{ k }}: {{ v | upper }}")), "leaves out"),
        (template("<call>" + JSON), "leaves out"),
    ],
)
def test_what_cannot_be_learnt_is_refused_with_a_reason(source: str, reason: str) -> None:
    with pytest.raises(NotLearntError, match=reason):
        learn(loaded(source))


QWEN = {
    "start_anchor": "<|bot|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*"},
    },
}
TAGGED = {
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\S+)\n?",
            "close_pattern": r"</call>\s*",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<k>(?P<key>[^<]+)</k>\s*<v>(?P<value>.*?)</v>"},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        }
    }
}
UNQUOTED = {
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>call:(?P<name>\w+)",
            "close": "</call>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        }
    }
}
NAMED_KEYS = {
    "fields": {
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "transform": {
                "function": {"name": "{content.tool}", "arguments": "{content.parameters}"}
            },
        }
    }
}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (
            QWEN,
            TurnFormat(
                reasoning=Reasoning(open="<think>", close="</think>"),
                text_markers=("<|end|>",),
                calls=HERMES.calls,
            ),
        ),
        (
            TAGGED,
            calls("<call>", NAME, "\n", ARGUMENTS, "</call>", members=members(
                Value(types=JSON_TYPES, open="</k>\n<v>", close="</v>"), before="<k>")),
        ),
        (
            UNQUOTED,
            calls("<call>call:", NAME, "{", ARGUMENTS, "}</call>", members=members(
                Value(types=JSON_TYPES, open=":", dialect="gemma", quote="<q>"), between=",")),
        ),
        (
            NAMED_KEYS,
            calls('<call>\n{"tool": "', NAME, '", "parameters": ', ARGUMENTS, "}\n</call>"),
        ),
    ],
)  # fmt: skip
def test_a_declaration_becomes_a_format(declared: dict[str, Any], expected: TurnFormat) -> None:
    assert declared_format(declared) == expected


def with_calls(**changes: Any) -> dict[str, Any]:
    return {"fields": {"tool_calls": {**NAMED_KEYS["fields"]["tool_calls"], **changes}}}


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"fields": []},
        with_calls(open_pattern="(a|b)+", open=None),
        with_calls(content="kv-lines"),
        with_calls(transform_each=True),
        with_calls(transform=None),
    ],
)
def test_other_declarations_are_none(declared: dict[str, Any]) -> None:
    with pytest.raises(NotDeclaredError):
        declared_format(declared)


@pytest.mark.parametrize(
    ("source", "declared", "origin"),
    [
        (template(HERMES_CALL), QWEN, "declared"),
        (template(HERMES_CALL), None, "learnt"),
        (template(HERMES_CALL), TAGGED, "learnt"),
        (template(HERMES_CALL), {"fields": {}}, "learnt"),
    ],
)
def test_a_declaration_counts_if_it_reads_what_the_template_writes(
    source: str, declared: dict[str, Any] | None, origin: str
) -> None:
    assert format_of(loaded(source, declared))[1] == origin


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (template() + "{# <|channel|> <|message|> <|call|> in tools #}", HARMONY),
        (template() + "{# tools: <tool_call>\\n{'arguments' #}", HERMES_FORM),
        (template(), HERMES_FORM),
        (template() + "{# </think> #}", HERMES),
    ],
)
def test_a_table_has_what_templates_do_not_show(source: str, form: TurnFormat) -> None:
    assert format_of(loaded(source)) == (form, "table")


def test_a_template_with_unknown_calls_is_refused() -> None:
    with pytest.raises(NotLearntError):
        format_of(loaded(template("{{ c.name }} with " + JSON)))
