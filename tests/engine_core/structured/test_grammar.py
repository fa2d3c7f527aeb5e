"""Grammars by llguidance: which are refused, which texts they allow, and the cost of compiling."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import pytest

from engine_core.messages import Grammar, GrammarKind, SamplingParams
from engine_core.structured.compiler import compiler_for
from engine_core.structured.grammar import CompiledGrammar
from engine_core.structured.matcher import Matcher
from engine_core.structured.schema_tree import GrammarError
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import GENERATOR_NAME, demo_models
from tests.engine_core.configs import MODEL, execution_config
from tests.engine_core.grammars import GRAMMARS
from tests.engine_core.structured.schemas import COMPILER, TOKENIZER, allows, compiled, next_tokens

MANY = {f"property{i}": {"type": "string"} for i in range(700)}


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        ("json_schema", '{"type": 3}', r"Expected `str \| array`.*`\$.type`"),
        ("json_schema", '{"properties": []}', "Expected `object`"),
        ("json_schema", '{"$ref": "#"}', "no text matches"),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("json_schema", '{"type": "string", "pattern": "a("}', "unclosed group"),
        ("json_schema", '{"type": "object", ', "cannot be read: Expecting property name"),
        ("json_schema", json.dumps({"type": "object", "properties": MANY}), "Current row has"),
        ("json_schema", '{"items": ' * 200 + "{}" + "}" * 200, "nested too deeply"),
        ("regex", "a(", "unclosed group"),
        ("regex", "(?=a)b", "look-ahead"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(a{1000}){1000}", "too many"),
        ("regex", "((a{1,1000}){1,1000})", "too many"),
        ("regex", "([a-z]{1,300} ?){1,50}", "too many"),
        ("regex", "(a{1,50}){1,50}", "too many"),
        ("regex", r"[^\s\S]", "no text matches"),
        ("regex", "()", "only the empty text matches"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(
    kind: GrammarKind, source: str, says: str
) -> None:
    with pytest.raises(GrammarError, match=says) as caught:
        COMPILER.compile(Grammar(kind, source, "field"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350


@pytest.mark.parametrize(
    "regex",
    [
        "([0-9a-f]{4}-){3}[0-9a-f]{12}", r"(\d{1,3}\.){3}\d{1,3}", r"(\w{1,100},){0,100}",
        r"([A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,6}", "([a-z]+,){1,1000}", "(ab?){2,40}x",
    ],
)  # fmt: skip
def test_groups_may_repeat(regex: str) -> None:
    assert COMPILER.compile(Grammar("regex", regex, "")).ignored == ()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":1}', True), ('{"a": 1}', True), ('{\n    "a": 1\n}', True), ('{  "a": 1}', False),
        ('{\n\n"a": 1}', False), (' {"a": 1}', False),
    ],
)  # fmt: skip
def test_json_may_be_laid_out_but_not_go_on_in_blanks(text: str, fits: bool) -> None:
    number = {"type": "integer", "maximum": 9, "minimum": 0}
    assert allows(compiled({"properties": {"a": number}, "required": ["a"]}), text) == fits


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    schema = {"properties": {"z": {"const": 1}, "a": {"const": 2}}, "required": ["a", "z"]}
    texts = ('{"z":1,"a":2}', '{"a":2,"z":1}')
    assert [allows(compiled(schema), text) for text in texts] == [True, False]


@pytest.mark.parametrize("text", ["<|end|>", 'a"b\\c\n', "naïve 漢字 🎉", "a|b", "/x/", "%"])
def test_a_choice_is_taken_as_it_is_written(text: str) -> None:
    matcher = Matcher(compiled([text, "other"], "choice"), SamplingParams(), 4096)
    said: list[int] = []
    while not matcher.complete:
        texts = {token: TOKENIZER.decode([*said, token]) for token in next_tokens(matcher)}
        said.append([token for token in texts if text.startswith(texts[token].rstrip("�"))][-1])
        assert matcher.accept(said[-1])
    assert TOKENIZER.decode(said) == text


@pytest.mark.parametrize(
    ("has_file", "says"), [(False, "has no tokenizer"), (True, "cannot follow a grammar")]
)
def test_a_model_without_a_tokenizer_that_is_known_refuses(
    tmp_path: Path, word_tokenizer, has_file: bool, says: str
) -> None:
    if has_file:
        word_tokenizer.raw.save(str(tmp_path / "tokenizer.json"))
    config = execution_config(model=msgspec.structs.replace(MODEL, path=str(tmp_path)))
    with pytest.raises(GrammarError, match=says):
        compiler_for(config, word_tokenizer)(GRAMMARS[0])


def test_a_model_that_generates_compiles() -> None:
    folder = demo_models()[GENERATOR_NAME]
    model = msgspec.structs.replace(MODEL, path=str(folder), vocab_size=4096)
    compiled = compiler_for(execution_config(model=model), Tokenizer.load(folder))(GRAMMARS[3])
    assert isinstance(compiled, CompiledGrammar)
    assert compiled.words == 129


def test_compiling_lets_other_threads_run() -> None:
    """A loop that shares the interpreter is held up for far less than compiling takes."""
    with ThreadPoolExecutor(1) as thread:
        compiling = thread.submit(COMPILER.compile, Grammar("regex", "x(a{1000}){1000}", ""))
        beats = 0
        while not wait([compiling], 0.002).done:
            beats += 1
    assert isinstance(compiling.exception(), GrammarError)
    assert beats > 5
