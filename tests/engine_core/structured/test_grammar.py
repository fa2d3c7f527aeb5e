"""Grammars by llguidance: which are refused, which texts they allow, and the cost of compiling."""

import json
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_core.messages import Grammar, GrammarKind, SamplingParams
from engine_core.structured.grammar import GrammarCompiler, compiler_for
from engine_core.structured.matcher import Matcher
from engine_core.structured.schema_tree import GrammarError
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import GENERATOR_NAME, demo_models
from tests.engine_core.configs import MODEL, execution_config
from tests.engine_core.grammars import GRAMMARS

MANY = {f"property{i}": {"type": "string"} for i in range(1500)}


@pytest.fixture(scope="module")
def demo() -> GrammarCompiler:
    return GrammarCompiler(Tokenizer.load(demo_models()[GENERATOR_NAME]), 4096)


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        ("json_schema", '{"type": 3}', r"Expected `str \| array`.*`\$.type`"),
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"properties": []}', "Expected `object`"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"$ref": "https://example.com/a.json"}', r"\$\.\$ref"),
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
    demo: GrammarCompiler, kind: GrammarKind, source: str, says: str
) -> None:
    with pytest.raises(GrammarError, match=says) as caught:
        demo.compile(Grammar(kind, source, "field"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350


@pytest.mark.parametrize(
    "regex",
    [
        "([0-9a-f]{4}-){3}[0-9a-f]{12}", r"(\d{1,3}\.){3}\d{1,3}", r"(\w{1,100},){0,100}",
        r"([A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,6}", "([a-z]+,){1,1000}", "(ab?){2,40}x",
    ],
)  # fmt: skip
def test_groups_may_repeat(demo: GrammarCompiler, regex: str) -> None:
    assert demo.compile(Grammar("regex", regex, "")).ignored == ()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":1}', True),
        ('{"a": 1}', True),
        ('{\n    "a": 1\n}', True),
        ('{  "a": 1}', False),
        ('{\n\n"a": 1}', False),
        (' {"a": 1}', False),
    ],
)
def test_json_may_be_laid_out_but_not_go_on_in_blanks(
    demo: GrammarCompiler, text: str, fits: bool
) -> None:
    schema = {"properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
              "required": ["a"], "additionalProperties": False, "type": "object"}  # fmt: skip
    compiled = demo.compile(Grammar("json_schema", json.dumps(schema), ""))
    (ids,) = Tokenizer.load(demo_models()[GENERATOR_NAME]).encode([text], add_special_tokens=False)
    matcher = Matcher(compiled, SamplingParams(), 4096)
    followed = all(matcher.accept(token) for token in np.frombuffer(ids, np.int32).tolist())
    assert (followed and matcher.complete) == fits


def test_a_schema_keeps_the_order_of_its_properties(demo: GrammarCompiler) -> None:
    source = '{"type":"object","properties":{"z":{"const":1},"a":{"const":2}},"required":["a","z"]}'
    state = Matcher(demo.compile(Grammar("json_schema", source, "")), SamplingParams(), 4096).state
    tokenizer = Tokenizer.load(demo_models()[GENERATOR_NAME])
    for text, fits in (('{"z":1,"a":2', True), ('{"a":2', False)):
        (ids,) = tokenizer.encode([text], add_special_tokens=False)
        tokens = np.frombuffer(ids, np.int32).tolist()
        assert (state.validate_tokens(tokens) == len(tokens)) == fits


@pytest.mark.parametrize("text", ["<|end|>", 'a"b\\c\n', "naïve 漢字 🎉", "a|b", "/x/", "%"])
def test_a_choice_is_taken_as_it_is_written(demo: GrammarCompiler, text: str) -> None:
    compiled = demo.compile(Grammar("choice", json.dumps([text, "other"]), "choice"))
    matcher = Matcher(compiled, SamplingParams(), 4096)
    tokenizer = Tokenizer.load(demo_models()[GENERATOR_NAME])
    said: list[int] = []
    while not matcher.complete:
        mask = np.zeros(matcher.words, np.uint32)
        matcher.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        fitting = [t for t in allowed if text.startswith(tokenizer.decode([*said, t]).rstrip("�"))]
        said.append(fitting[-1])
        assert matcher.accept(said[-1])
    assert tokenizer.decode(said) == text


def test_a_model_without_a_tokenizer_refuses(tmp_path: Path) -> None:
    model = msgspec.structs.replace(MODEL, path=str(tmp_path))
    config = execution_config(model=model, load_format="dummy")
    tokenizer = Tokenizer.for_model(model, "dummy")
    with pytest.raises(GrammarError, match="has no tokenizer"):
        compiler_for(config, tokenizer)(GRAMMARS[0])


def test_a_tokenizer_that_cannot_be_read_for_it_refuses(tmp_path: Path, word_tokenizer) -> None:
    word_tokenizer.raw.save(str(tmp_path / "tokenizer.json"))
    config = execution_config(model=msgspec.structs.replace(MODEL, path=str(tmp_path)))
    with pytest.raises(GrammarError, match="cannot follow a grammar"):
        compiler_for(config, word_tokenizer)(GRAMMARS[0])


def test_a_model_that_generates_compiles() -> None:
    folder = demo_models()[GENERATOR_NAME]
    model = msgspec.structs.replace(MODEL, path=str(folder), vocab_size=4096)
    compiled = compiler_for(execution_config(model=model), Tokenizer.load(folder))(GRAMMARS[3])
    assert compiled.words == 129


def test_compiling_lets_other_threads_run(demo: GrammarCompiler) -> None:
    """A loop that shares the interpreter is held up for far less than compiling takes."""
    beats = 0
    done = threading.Event()

    def compile_slowly() -> None:
        with pytest.raises(GrammarError):
            demo.compile(Grammar("regex", "x(a{1000}){1000}", ""))
        done.set()

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    while not done.wait(0.002):
        beats += 1
    thread.join()
    assert beats > 5
