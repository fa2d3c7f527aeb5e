"""Calls that are written in a format, and read back."""

import pytest

from server.turns.turn_parser import Call, calls_of
from server.turns.written_calls import (
    WrittenCall,
    example_call,
    written_arguments,
    written_calls,
)
from tests.server.turns.forms import FORMS, events_of

VALUES = {"a": 'He said "é", isn\'t it?', "n": 3, "on": True, "any": 5, "of": {"x": [None]}}
CALLS = [Call("get", VALUES), Call("get_all", {})]


@pytest.mark.parametrize("name", FORMS)
def test_written_calls_are_read_back(name: str) -> None:
    form = FORMS[name].calls[0]
    calls = CALLS if form.many or form.marker else CALLS[:1]
    written = [
        WrittenCall(call.name, written_arguments(form, call.arguments), f"call_{number}")
        for number, call in enumerate(calls)
    ]
    assert calls_of(events_of(FORMS[name], written_calls(form, written))) == calls


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("list", '[CALLS] [{"name": "NAME", "arguments": <args-json-object>, "id": "<id>"}]'),
        ("tags", "<call>\n<function=NAME>\n<p=KEY>\n<value>\n</p>\n</function>\n</call>"),
        ("pythonic", "[NAME(KEY=<value>)]"),
        ("section", "<calls><call>functions.NAME:0<args><args-json-object></call></calls>"),
    ],
)
def test_an_example_has_words_for_the_parts_of_a_call(name: str, example: str) -> None:
    expected = example.replace("NAME", "<function-name>").replace("KEY", "<argument-name>")
    assert example_call(FORMS[name].calls[0]) == expected
