"""The grammar of arguments as members follows the tool's schema, and what it permits is read back
as that schema has it."""

import json
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine_core.messages import SamplingParams, ToolRules, TurnRules
from engine_core.structured.compiler import TurnCompiler
from engine_core.structured.grammar import GrammarCompiler
from engine_core.structured.schema_tree import GrammarError
from engine_core.structured.turn_matcher import CompiledTurn, TurnMatcher
from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer
from server.demo import GENERATOR_NAME, demo_models
from server.turns.turn_parser import Call, TurnParser, calls_of
from tests.server.turns.forms import FORMS

JSON = dict[str, Any]
TURNS = {
    "tags": "<call>\n<function=f>\n{}</function>\n</call>",
    "pythonic": "[f({})]",
    "quotes": "<call>f{{{}}}</call>",
}
MEMBERS = {"tags": "<p=a>\n{}\n</p>\n", "pythonic": "a={}", "quotes": "a:{}"}


class Turns:
    """A tokenizer with a quote of one special token, and what its grammars permit."""

    def __init__(self, folder: Path) -> None:
        self.raw = RawTokenizer.from_file(str(demo_models()[GENERATOR_NAME] / TOKENIZER_FILE))
        self.raw.add_special_tokens(["<|'|>"])
        self.raw.save(str(folder / TOKENIZER_FILE))
        self.compiler = GrammarCompiler(Tokenizer.load(folder), self.raw.get_vocab_size())

    def compiled(self, form: str, schema: JSON) -> CompiledTurn:
        tool = ToolRules(name="f", parameters=json.dumps(schema), strict=True, param="tools[0]")
        rules = TurnRules(form=FORMS[form], tools=(tool,), calls="required", parallel=False)
        return TurnCompiler(self.compiler, rules).compiled()

    def permits(self, turn: CompiledTurn, text: str) -> bool:
        params = SamplingParams(eos_token_ids=frozenset({1}))
        matcher = TurnMatcher(turn, params, self.raw.get_vocab_size())
        tokens = self.raw.encode(text, add_special_tokens=False).ids
        return all(map(matcher.accept, tokens)) and (matcher.complete or matcher.accept(1))


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Turns:
    return Turns(tmp_path_factory.mktemp("tokenizer"))


def calls_in(form: str, schema: JSON, text: str) -> list[Call]:
    parser = TurnParser(FORMS[form], {"f": schema})
    return calls_of([*parser.feed(text), *parser.finish()])


STRING_OR_NULL = {"enum": ["x", None], "type": ["string", "null"]}
COLOUR = {"anyOf": [{"$ref": "#/$defs/colour"}, {"type": "null"}]}
NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
DEFS = {"colour": {"enum": ["red", "7"]}, "node": NODE}


def nested(inner: JSON) -> JSON:
    for _ in repeat(None, 9):
        inner = {"next": inner, "n": 1}
    return inner


CASES: list[tuple[str, JSON, dict[str, Any], list[str]]] = [
    ("tags", STRING_OR_NULL, {"x": "x", "null": None}, ["y", "xx", "", " x", "x "]),
    ("tags", STRING_OR_NULL | {"type": "string"}, {"x": "x"}, ["null"]),
    ("tags", COLOUR, {"red": "red", "7": "7", "null": None}, ["8", "green"]),
    ("tags", {"anyOf": [{"enum": ["x"]}, {"type": "integer"}]}, {"x": "x", "12": 12}, ["y"]),
    ("tags", {"$ref": "#/$defs/text"}, {"12": "12"}, []),
    ("pythonic", {"type": "object", "additionalProperties": False}, {"{}": {}}, ['{"k":1}']),
    (
        "pythonic",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {'{"k":1}': {"k": 1}},
        ['{"k":"s"}'],
    ),
    ("pythonic", {"type": "object", "required": ["k"]}, {'{"k":[1]}': {"k": [1]}}, ["{}"]),
    ("pythonic", COLOUR, {'"red"': "red", "None": None}, ['"green"', "7"]),
    (
        "pythonic",
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"const": "x"}]}},
        {'[1,"x"]': [1, "x"]},
        ['["y"]'],
    ),
    (
        "pythonic",
        {"$ref": "#/$defs/node"},
        {json.dumps(nested({"n": 1})): nested({"n": 1})},
        [json.dumps(nested({}))],
    ),
    (
        "pythonic",
        {"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 2, "maxItems": 3},
        {"[1,2]": [1, 2], "[-3,2,9]": [-3, 2, 9]},
        ["[]", "[1]", "[1,2,3,4]", "[1,10]"],
    ),
    ("pythonic", {"type": "array", "maxItems": 1}, {"[]": [], "[1]": [1]}, ["[1,2]"]),
    ("pythonic", {"type": "array", "minItems": 1}, {"[1,2]": [1, 2]}, ["[]"]),
    ("pythonic", {"type": "array", "maxItems": 10**12}, {"[]": [], "[1,2]": [1, 2]}, []),
    ("pythonic", {"type": "array", "maxItems": 0}, {"[]": []}, ["[1]"]),
    ("pythonic", {"type": "string", "pattern": "^a+$"}, {'"aa"': "aa"}, ['"b"', "'aa'"]),
    ("quotes", {"type": "number", "minimum": 2}, {"2.5": 2.5}, ["1.5"]),
    ("quotes", {"type": "string"}, {"<|'|>x y<|'|>": "x y"}, ["x"]),
    ("quotes", COLOUR, {"<|'|>red<|'|>": "red", "null": None}, ["<|'|>green<|'|>"]),
    (
        "quotes",
        {"type": "object", "properties": {"first name": {"type": "integer"}}},
        {"{first name:1}": {"first name": 1}},
        ["{last name:1}"],
    ),
]


@pytest.mark.parametrize(("form", "schema", "permitted", "refused"), CASES)
def test_a_value_follows_its_schema(
    form: str,
    schema: JSON,
    permitted: dict[str, Any],
    refused: list[str],
    turns: Turns,
) -> None:
    whole = {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "$defs": DEFS | {"text": {"type": "string"}},
    }
    turn = turns.compiled(form, whole)
    for written, value in permitted.items():
        text = TURNS[form].format(MEMBERS[form].format(written))
        assert turns.permits(turn, text)
        assert calls_in(form, whole, text) == [Call("f", {"a": value})]
    for written in refused:
        assert not turns.permits(turn, TURNS[form].format(MEMBERS[form].format(written)))


A, B = ({"properties": {name: {"type": "string"}}, "required": [name]} for name in "ab")
ROOTS: list[tuple[JSON, str, str]] = [
    ({"additionalProperties": False}, "", MEMBERS["tags"].format("x")),
    ({"additionalProperties": {"type": "integer"}}, MEMBERS["tags"].format("1"), "<p=a>\nx\n</p>"),
    ({"$ref": "#/$defs/a", "$defs": {"a": A}}, MEMBERS["tags"].format("x"), ""),
    ({"anyOf": [A, B]}, MEMBERS["tags"].format("x"), ""),
]


@pytest.mark.parametrize(("schema", "permitted", "refused"), ROOTS)
def test_members_follow_the_schema_of_all(
    schema: JSON, permitted: str, refused: str, turns: Turns
) -> None:
    turn = turns.compiled("tags", schema)
    assert turns.permits(turn, TURNS["tags"].format(permitted))
    assert not turns.permits(turn, TURNS["tags"].format(refused))


@pytest.mark.parametrize("form", ["tags", "quotes"])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}}},
        {"properties": {"a": {"type": "string"}}, "minProperties": 1},
        {"properties": {"a": {"properties": {}, "anyOf": [{"properties": {"b": {}}}]}}},
    ],
)
def test_what_is_not_followed_is_refused_for_strict_tools(
    form: str, schema: JSON, turns: Turns
) -> None:
    with pytest.raises(GrammarError, match="this model's calls write it as text"):
        turns.compiled(form, schema)
