"""Turns are read alike however the stream is cut, and what is no call is text."""

import random
import sys
from typing import Any, NamedTuple

import pytest

from server.turns.literals import value_of
from server.turns.turn_parser import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
    TurnParser,
    calls_of,
)
from tests.server.turns.forms import FORMS, SCHEMAS, events_of


class Turn(NamedTuple):
    """A turn as it is read."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def turn_of(events: list[Event]) -> Turn:
    return Turn(
        "".join(event.text for event in events if isinstance(event, TextDelta)),
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        tuple((call.name, call.arguments) for call in calls_of(events)),
    )


def raw_arguments(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ArgumentsDelta))


HERMES_CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "}\\"<"}}\n</tool_call>'
HERMES_TURN = f"<think>\nHm <x\n</think>\n\nSo <tool \n\n{HERMES_CALL}\n{HERMES_CALL}"
GET = ("get", {"a": '}"<'})
TAGS = (
    "<call>\n<function=get>\n<p=a>\n 12 \n\n</p>\n<p=n>\n12\n</p>\n"
    "<p=on>\nTrue\n</p>\n</function>\n</call>"
)
HARMONY_CALL = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"n": 1}<|call|>'
HARMONY_TURN = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY_CALL}"
TURNS = [
    ("hermes", HERMES_TURN, Turn("So <tool", "Hm <x", (GET, GET))),
    ("hermes", "  Only text. \n", Turn("  Only text. \n")),
    ("hermes", "<tool_call>{}</tool_call>", Turn("<tool_call>{}</tool_call>")),
    ("hermes", HERMES_CALL.replace("get", "put"), Turn(HERMES_CALL.replace("get", "put"))),
    (
        "hermes",
        '<tool_call>{"arguments":"{\\"n\\":1}","name":"get_all"}</tool_call> Then.',
        Turn("Then.", "", (("get_all", {"n": 1}),)),
    ),
    (
        "hermes",
        '<tool_call>{"name":"get","arguments":{"n":1},"arguments":{"n":2},"id":"x"}</tool_call>',
        Turn(calls=(("get", {"n": 1}),)),
    ),
    ("hermes", f"<think>Hm {HERMES_CALL}", Turn("", "Hm", (GET,))),
    ("bare", '{"name": "get", "parameters": {"n": 1}}', Turn(calls=(("get", {"n": 1}),))),
    (
        "bare",
        'So: {"name": "get", "parameters": {}}',
        Turn('So: {"name": "get", "parameters": {}}'),
    ),
    ("bare", '{"name": "Ada"}', Turn('{"name": "Ada"}')),
    (
        "list",
        '[CALLS] [{"name": "get", "arguments": {}, "id": "x"}, {"name":"get_all","arguments":{}}]',
        Turn(calls=(("get", {}), ("get_all", {}))),
    ),
    (
        "section",
        'I call.<calls><call>functions.get_all:0<args>{"x": [1]}</call></calls>',
        Turn("I call.", "", (("get_all", {"x": [1]}),)),
    ),
    (
        "id behind",
        '<call>get {"n": 1}<id>a-1</id>0<end>\n<call>get_all {}<id>b</id>1<end> Then.',
        Turn("Then.", "", (("get", {"n": 1}), ("get_all", {}))),
    ),
    (
        "tags with an id",
        "<call>get><p=n>1</p><id>a-1</call>Then.",
        Turn("Then.", "", (("get", {"n": 1}),)),
    ),
    (
        "tags",
        "<call><function=get><p=ref>5</p><p=choice>null</p></function></call>",
        Turn(calls=(("get", {"ref": "5", "choice": None}),)),
    ),
    (
        "tags",
        "<call><function=get><p=choice>5</p></function></call>",
        Turn(calls=(("get", {"choice": "5"}),)),
    ),
    ("tags", TAGS, Turn(calls=(("get", {"a": " 12 \n", "n": 12, "on": True}),))),
    (
        "tags",
        "<call><function=get><p=any>5</p><p=of>{'b': [None]}</p></function></call>",
        Turn(calls=(("get", {"any": 5, "of": {"b": [None]}}),)),
    ),
    (
        "tags",
        "<call>\n<function=get>\n<p=any>\nfive\n</p>\n<p=new>\n[1]\n</p>\n</function>\n</call>",
        Turn(calls=(("get", {"any": "five", "new": [1]}),)),
    ),
    (
        "typed",
        '<call name="get"><p name="any" string="true">5</p><p name="n" string="false">5</p></call>',
        Turn(calls=(("get", {"any": "5", "n": 5}),)),
    ),
    (
        "pythonic",
        "[get(a='it\\'s, ok)', n=3), get_all(), get(a=Rome, of={'x': True})]",
        Turn(
            calls=(
                ("get", {"a": "it's, ok)", "n": 3}),
                ("get_all", {}),
                ("get", {"a": "Rome", "of": {"x": True}}),
            )
        ),
    ),
    ("pythonic", "[1] get(a=2)", Turn("[1] get(a=2)")),
    (
        "quotes",
        "<call>get{a:<|'|>\"}<|'|>,of:{b:[<|'|>c<|'|>,false]}}</call>",
        Turn(calls=(("get", {"a": '"}', "of": {"b": ["c", False]}}),)),
    ),
    ("harmony", HARMONY_TURN, Turn("", "Hm.", (("get", {"n": 1}),))),
    (
        "harmony",
        ' to=functions.get_all<|channel|>commentary json<|message|>{"n": 1}<|call|>',
        Turn(calls=(("get_all", {"n": 1}),)),
    ),
    ("harmony", "<|channel|>final<|message|>Yes.", Turn("Yes.")),
    ("text between markers", "<hm>a</hm><text>b</text>", Turn("b", "a")),
]


@pytest.mark.parametrize(("name", "text", "expected"), TURNS)
def test_a_turn_is_read_alike_at_every_cut(name: str, text: str, expected: Turn) -> None:
    form = FORMS[name]
    whole = events_of(form, text)
    assert turn_of(whole) == expected
    assert turn_of(events_of(form, *text)) == expected
    for cut in range(len(text)):
        cut_events = events_of(form, text[:cut], text[cut:])
        assert turn_of(cut_events) == expected
        assert raw_arguments(cut_events) == raw_arguments(whole)
        begun = turn_of(events_of(form, text[:cut])).calls
        assert begun == expected.calls[: len(begun)]


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "get", "arguments": {"a": "b', '{"a": "b'),
        ("hermes", '<tool_call>{"name": "get", "arguments": {"a": b}}</tool_call>', '{"a": b}'),
        ("hermes", '<tool_call>{"name": "get", "arguments": [1]}</tool_call>', "[1]"),
        ("tags", "<call>\n<function=get>\n<p=a>\nbegun", '{"a": "begun"'),
        ("tags", "<call>\n<function=get>\n<q=a>\n</function>\n</call>", "{"),
        ("quotes", "<call>get{of:{b=1}}</call>", '{"of": '),
    ],
)
def test_cut_and_malformed_arguments_are_no_whole_call(
    name: str, text: str, arguments: str
) -> None:
    events = events_of(FORMS[name], text)
    assert events[0] == CallBegin(0, "get", "")
    assert CallEnd(0, is_whole=False) in events
    assert raw_arguments(events) == arguments
    assert calls_of(events) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hermes", 'So.\n<tool_call>\n{"name": "ge', "So."),
        ("hermes", "<think>Hm.\n<tool_call>", ""),
        ("hermes", "<tool_call>\n[1", "<tool_call>\n[1"),
        ("hermes", '<tool_call>\n{"name": "put", "arg', '<tool_call>\n{"name": "put", "arg'),
        ("tags", "So.<call>\n<function=get", "So."),
        # It may be any JSON.
        ("bare", '{"name": "ge', '{"name": "ge'),
    ],
)
def test_what_is_cut_and_may_have_become_a_call_is_no_text(name: str, text: str, said: str) -> None:
    for pieces in ([text], [*text]):
        parser = TurnParser(FORMS[name], SCHEMAS)
        events = [event for piece in pieces for event in parser.feed(piece)]
        turn = turn_of([*events, *parser.finish(is_cut=True)])
        assert (turn.text, turn.calls) == (said, ())


def test_the_name_comes_first_and_arguments_as_they_arrive() -> None:
    parser = TurnParser(FORMS["tags"], SCHEMAS)
    assert parser.feed("<call>\n<function=get") == []
    assert parser.feed(">\n<p=a>\nfirst") == [
        CallBegin(0, "get", ""),
        ArgumentsDelta(0, '{"a": "first'),
    ]
    assert parser.feed(' "second"\n<') == [ArgumentsDelta(0, ' \\"second\\"')]
    rest = [*parser.feed("b>\n</p>\n</function>\n</call>"), *parser.finish()]
    assert rest == [ArgumentsDelta(0, '\\n<b>"}'), CallEnd(0, is_whole=True)]


def test_a_models_own_id_comes_with_the_call() -> None:
    begun = events_of(FORMS["section"], "<calls><call>functions.get:7<args>{}</call></calls>")[0]
    assert begun == CallBegin(0, "get", "7")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("<think>\n", Turn("b", "a")), ("<think></think>", Turn("a</think>b"))],
)
def test_the_prompt_says_whether_reasoning_is_open(prompt: str, expected: Turn) -> None:
    assert turn_of(events_of(FORMS["tags"], "a</think>b", prompt=prompt)) == expected


def test_without_tools_there_are_no_calls() -> None:
    parser = TurnParser(FORMS["hermes"], {})
    assert turn_of([*parser.feed(HERMES_CALL), *parser.finish()]) == Turn(HERMES_CALL)


PIECES = [
    *"(){}[]\"'\\,:= \n<>an1eé",
    *("get", "get_all", "true", "<p", "</p>", "<call>", "</call>", "<|'|>", "<think>", "</think>"),
    *("<function=", "<tool_call>", "</tool_call>", '"name"', '"arguments"', "functions."),
    *("<calls>", "<args>", "<|channel|>", "<|message|>"),
]


@pytest.mark.parametrize("name", FORMS)
def test_random_text_is_read_alike_in_whole_and_in_pieces(name: str) -> None:
    chance = random.Random(name)
    form = FORMS[name]
    opening = [form.calls[0].opening, "get"]
    for _ in range(300):
        start = opening if chance.random() < 0.5 else []
        pieces = [*start, *chance.choices(PIECES, k=chance.randrange(25))]
        text = "".join(pieces)
        whole = turn_of(events_of(form, text))
        assert turn_of(events_of(form, *pieces)) == turn_of(events_of(form, *text)) == whole
        begins = sum(isinstance(event, CallBegin) for event in events_of(form, text))
        assert begins == sum(isinstance(event, CallEnd) for event in events_of(form, text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("950e2554", sys.float_info.max),
        ("-1e999", -sys.float_info.max),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
    ],
)
def test_a_number_beyond_all_floats_is_the_last_one(text: str, value: object) -> None:
    """A schema's grammar permits such numbers, and JSON has no infinity."""
    assert value_of(text, {"number", "string"}) == value
