"""Turns through the loop: calls and forms are whole, however far ahead rows have run."""

import json
import re
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.messages import GenerateJob, Grammar, SamplingParams, ToolRules, TurnRules
from engine_core.structured.compiler import compiler_for
from engine_core.structured.matcher import clear
from engine_core.structured.schema_tree import GrammarError
from engine_core.structured.turn_matcher import CompiledTurn, TurnMatcher
from engine_core.turn_format import CallFormat, Members, Reasoning, Slot, TurnFormat, Value
from tests.engine_core.configs import MODEL, execution_config
from tests.engine_core.fake_transport import Engine
from tests.engine_core.masked_driver import STOPS, TOKENIZER
from tests.engine_core.simulated_model import VOCAB, allowed_tokens, ids, next_token
from tests.engine_core.test_core import served

NAME, ARGUMENTS = Slot("name"), Slot("arguments")
SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 12]}}, "required": ["x"]}
CALL = re.compile(r'(a|d0):\{"x":(1|12)\}')
REASONING = Reasoning(open="ff", close="ab")
SPECIAL = CallFormat(call=("<c>", NAME, ":", ARGUMENTS, "."))
PLAIN = CallFormat(call=("<y>", NAME, ":", ARGUMENTS, "."))
BARE = CallFormat(call=("1", NAME, ":", ARGUMENTS), many=False)
FORMS = [TurnFormat(calls=(each,), reasoning=REASONING) for each in (SPECIAL, PLAIN, BARE)]
TOOLS = tuple(
    ToolRules(name=name, parameters=json.dumps(SCHEMA), strict=True, param=f"tools[{number}]")
    for number, name in enumerate(("a", "d0"))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    TOKENIZER.raw.save(str(folder / "tokenizer.json"))
    return folder


def compiled(folder: Path, rules: TurnRules) -> CompiledTurn:
    config = execution_config(model=msgspec.structs.replace(MODEL, path=str(folder)))
    turn = compiler_for(config, TOKENIZER)(rules)
    assert isinstance(turn, CompiledTurn)
    return turn


def permitted(matcher: TurnMatcher) -> list[int]:
    """The tokens of the next mask."""
    bits = np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)
    if (grammar := matcher.grammar) is not None:
        own = np.zeros(grammar.words, np.uint32)
        grammar.state.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        assert grammar.finish_mask(own)
        bits &= own[: len(bits)]
    clear(bits, matcher.excluded)
    return allowed_tokens(bits)


def assert_sampled(matcher: TurnMatcher, prompt: list[int], tokens: list[int]) -> None:
    """Each token is the model's own: of all, or of those that the mask permits. A row that has run
    ahead may have a token of all where the grammar permits it, too."""
    for number, token in enumerate(tokens):
        context = [*prompt, *tokens[:number]]
        free = next_token(context)
        if matcher.masked:
            assert token in (free, next_token(context, permitted(matcher)))
            assert matcher.accept(token)
            continue
        sampled = free
        while not matcher.accept(sampled):
            sampled = next_token(context, permitted(matcher))
        assert token == sampled


turns = st.builds(
    TurnRules,
    form=st.sampled_from(FORMS),
    tools=st.just(TOOLS),
    calls=st.sampled_from(["auto", "none", "required"]),
    parallel=st.booleans(),
    in_reasoning=st.booleans(),
    reasoning_budget=st.sampled_from([None, 1, 4]),
    text=st.sampled_from([None, Grammar("regex", "[0-9]{2,4}", "text")]),
)


@pytest.mark.parametrize("stages", [1, 3])
@settings(max_examples=25)
@given(data=st.data())
def test_rows_follow_their_turns_whatever_runs_beside(
    folder: Path, stages: int, data: st.DataObject
) -> None:
    engine = Engine(
        TOKENIZER,
        "LlamaForCausalLM",
        num_blocks=24,
        num_stages=stages,
        max_model_len=120,
        model=msgspec.structs.replace(MODEL, path=str(folder)),
    )
    rules = [data.draw(turns) for _ in range(data.draw(st.integers(1, 4)))]
    params = [SamplingParams(max_tokens=80, eos_token_ids=STOPS, turn=each) for each in rules]
    jobs = [GenerateJob(n, params=each, ids=[ids(1, n)]) for n, each in enumerate(params)]
    ledger = served(engine, *jobs)
    for job, each in enumerate(rules):
        assert not ledger.failed
        tokens = ledger.tokens[job, 0]
        matcher = TurnMatcher(compiled(folder, each), params[job], VOCAB)
        assert_sampled(matcher, [1, job], tokens)
        is_over = matcher.complete or tokens[-1] in STOPS
        assert ledger.finished[job, 0] == ("stop" if is_over else "length")


def turn_of(
    folder: Path, rules: TurnRules, seed: int, most: int = 60, begins: str = ""
) -> list[int]:
    """A turn by the model alone, from a prompt that the seed chooses, and how it `begins`."""
    params = SamplingParams(eos_token_ids=STOPS)
    turn = compiled(folder, rules)
    matcher = TurnMatcher(turn, params, VOCAB)
    tokens = [seed, *turn.vocabulary.tokenize_str(begins)]
    assert all(map(matcher.accept, tokens[1:]))
    while len(tokens) < most and not matcher.complete and tokens[-1] not in STOPS:
        allowed = permitted(matcher)
        while not matcher.accept(token := next_token(tokens, allowed)):
            allowed = permitted(matcher)
        tokens.append(token)
    return [token for token in tokens[1:] if token not in STOPS]


def decoded(tokens: list[int]) -> str:
    return TOKENIZER.raw.decode(tokens, skip_special_tokens=False)


def text_of(folder: Path, rules: TurnRules, seed: int, most: int = 60, begins: str = "") -> str:
    return decoded(turn_of(folder, rules, seed, most, begins))


@pytest.mark.parametrize("form", FORMS, ids=["special", "plain", "bare"])
def test_required_calls_begin_the_turn(folder: Path, form: TurnFormat) -> None:
    rules = TurnRules(form=msgspec.structs.replace(form, reasoning=None), tools=TOOLS)
    rules = msgspec.structs.replace(rules, calls="required", parallel=False)
    for seed in range(20):
        text = "".join(text_of(folder, rules, seed).split())
        assert (found := CALL.search(text)) is not None
        assert text[: found.start()] == form.calls[0].opening
        assert text[found.end() :] == ("" if form is FORMS[2] else ".")


def test_no_opening_is_written_where_calls_are_forbidden(folder: Path) -> None:
    for form in FORMS[:2]:
        rules = TurnRules(form=form, tools=TOOLS, calls="none")
        texts = [text_of(folder, rules, seed, 200) for seed in range(20)]
        assert not any(form.calls[0].opening in text for text in texts)
        free = [
            text_of(folder, msgspec.structs.replace(rules, tools=()), n, 200) for n in range(20)
        ]
        assert form is FORMS[1] or any(form.calls[0].opening in text for text in free)


@pytest.mark.parametrize(
    ("calls", "fits"), [("none", [True, True, False]), ("auto", [True, True, True])]
)
def test_a_forbidden_opening_ends_before_its_markers_last_token(
    folder: Path, calls: Literal["none", "auto"], fits: list[bool]
) -> None:
    """The opening is longer: no piece of it that looks like a call stays as text."""
    form = TurnFormat(calls=(CallFormat(call=("<y>{", NAME, ":", ARGUMENTS, "}")),))
    turn = compiled(folder, TurnRules(form=form, tools=TOOLS, calls=calls))
    matcher = TurnMatcher(turn, SamplingParams(eos_token_ids=STOPS), VOCAB)
    vocabulary = turn.vocabulary
    assert [*map(matcher.accept, vocabulary.tokenize_str("<y>"))] == fits
    refused = set(vocabulary.tokenize_str(">")) if calls == "none" else set[int]()
    assert matcher.excluded == refused


def test_an_opening_is_followed_by_a_call(folder: Path) -> None:
    rules = TurnRules(form=FORMS[0], tools=TOOLS)
    texts = ["".join(text_of(folder, rules, seed, 300).split()) for seed in range(30)]
    calls = [text.split("<c>")[1:] for text in texts]
    assert sum(map(len, calls)) > 5
    assert all(CALL.match(call) for some in calls for call in some[:-1])


@pytest.mark.parametrize("opens", [False, True], ids=["behind the prompt", "opened"])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_reasoning_is_closed_after_its_budget(folder: Path, budget: int, opens: bool) -> None:
    begins = "ff" if opens else ""
    rules = TurnRules(form=FORMS[0], in_reasoning=not opens, reasoning_budget=budget)
    text = Grammar("regex", "[0-9]{2,4}", "text")
    for seed in range(10):
        for each in (rules, msgspec.structs.replace(rules, text=text)):
            tokens = turn_of(folder, each, seed, begins=begins)
            # Both markers are two characters.
            most = 2 * opens + budget + 2
            has_ended = each.text is None and len(tokens) < most
            assert has_ended or "ab" in decoded(tokens[:most])
            rest = decoded(tokens).partition("ab")[2]
            assert each.text is None or re.fullmatch(r"\s*[0-9]{2,4}", rest)


@pytest.mark.parametrize("form", FORMS[:2], ids=["special", "plain"])
@pytest.mark.parametrize("opens", [False, True], ids=["behind the prompt", "opened"])
def test_a_required_call_may_end_reasoning(folder: Path, form: TurnFormat, opens: bool) -> None:
    rules = TurnRules(form=form, tools=TOOLS, calls="required", in_reasoning=not opens)
    opening = form.calls[0].opening
    begins = f"{'ff' * opens}12{opening}"
    for seed in range(10):
        text = "".join(text_of(folder, rules, seed, 300, begins).split())
        calls = text.split(opening)[1:]
        assert all(CALL.match(call) for call in calls), text


@pytest.mark.parametrize(
    ("value", "keyword"),
    [
        ({"type": "string", "pattern": "^a"}, "pattern"),
        ({"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]}, None),
        ({"anyOf": [{"$ref": "#/$defs/any"}, {"type": "null", "title": "None"}]}, None),
        ({"enum": ["a", "b"], "description": "One."}, None),
    ],
)
def test_what_text_cannot_follow_is_refused_for_strict_tools_alone(
    folder: Path, value: dict[str, object], keyword: str | None
) -> None:
    types = ("string", "null")
    members = Members(before="<y", values=(Value(types=types, open=">", close="<"),))
    form = TurnFormat(calls=(CallFormat(call=("<c>", NAME, ARGUMENTS, "."), members=members),))
    defs = {"word": {"type": "string", "enum": ["a"]}, "any": {"type": "string"}}
    schema = {"properties": {"x": value}, "$defs": defs}
    tool = ToolRules(name="a", parameters=json.dumps(schema), strict=False, param="tools[0]")
    loose = compiled(folder, TurnRules(form=form, tools=(tool,)))
    assert loose.ignored == ((f"tools[0].{keyword}",) if keyword else ())
    strict = TurnRules(form=form, tools=(msgspec.structs.replace(tool, strict=True),))
    if keyword is None:
        assert compiled(folder, strict).ignored == ()
        return
    expected = f"{keyword}: this model's calls write it as text"
    with pytest.raises(GrammarError, match=expected) as caught:
        compiled(folder, strict)
    assert caught.value.param == "tools[0]"


def many_tools(number: int, properties: int, *, strict: bool = False) -> tuple[ToolRules, ...]:
    """Tools, no two of which have a property in common."""
    return tuple(
        ToolRules(
            name=f"{tool:x}",
            parameters=json.dumps({"properties": {f"{tool}_{n}": {} for n in range(properties)}}),
            strict=strict,
            param=f"tools[{tool}].function.parameters",
        )
        for tool in range(number)
    )


@pytest.mark.parametrize("calls", ["auto", "required"])
def test_a_thousand_tools_are_followed(folder: Path, calls: Literal["auto", "required"]) -> None:
    rules = TurnRules(form=TurnFormat(calls=(PLAIN,)), tools=many_tools(1000, 1), calls=calls)
    assert compiled(folder, rules).ignored == ()


def test_what_is_too_much_together_is_refused_for_strict_tools_alone(folder: Path) -> None:
    rules = TurnRules(form=TurnFormat(calls=(PLAIN,)), tools=many_tools(20, 700))
    assert rules.param == "tools"
    assert compiled(folder, rules).ignored == ("tools",)
    strict = msgspec.structs.replace(rules, tools=many_tools(20, 700, strict=True))
    with pytest.raises(GrammarError, match="it is too complex") as caught:
        compiled(folder, strict)
    assert not caught.value.param
