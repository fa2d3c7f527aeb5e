"""Which tokens may follow in a row with a grammar, and when its text is complete."""

from typing import Any

import numpy as np
import pytest

from engine_core.messages import Grammar, SamplingParams
from engine_core.structured.grammar import CompiledGrammar, GrammarCompiler
from engine_core.structured.matcher import Matcher
from tests.engine_core.grammars import END, GRAMMARS, json_tokenizer
from tests.engine_core.simulated_model import VOCAB, allowed_tokens
from tests.engine_core.structured.schemas import next_tokens


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(json_tokenizer(), VOCAB)


def mask_of(matcher: Matcher) -> list[int]:
    mask = np.zeros(matcher.words, np.uint32)
    matcher.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    assert matcher.finish_mask(mask)
    return allowed_tokens(mask)


def follow(compiled: CompiledGrammar, *ends: int, **options: Any) -> Matcher:
    params = SamplingParams(eos_token_ids=frozenset({END, *ends}), **options)
    return Matcher(compiled, params, VOCAB)


def id_of(piece: str) -> int:
    return json_tokenizer().raw.get_vocab()[piece]


def test_a_mask_holds_what_may_follow_and_nothing_else(compiler: GrammarCompiler) -> None:
    choice, digits = (follow(compiler.compile(grammar)) for grammar in GRAMMARS[:2])
    assert mask_of(choice) == sorted(map(id_of, ("a", "d", "f", "ab")))
    assert mask_of(digits) == [*range(10), id_of("12")]
    for token in (1, 2):
        assert digits.accept(token)
    assert mask_of(digits) == [*range(10), id_of("12"), END]
    assert not digits.complete
    assert digits.accept(END)
    assert digits.accept(1)
    assert digits.accept(id_of("3"))
    assert digits.complete


def test_a_row_has_its_own_end_tokens(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar("regex", "[ab]+", "regex"))
    two = follow(compiled, 49, 5000)
    none = Matcher(compiled, SamplingParams(), VOCAB)
    patient = follow(compiled, ignore_eos=True)
    letters = mask_of(none)
    for matcher, ends in ((two, [END, 49]), (none, []), (patient, [])):
        assert matcher.accept(letters[0])
        assert set(mask_of(matcher)) - set(letters) == set(ends)


def test_a_text_is_not_ended_early_unless_the_grammar_must(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar("regex", "[0-9]{1,4}", "regex"))
    late = follow(compiled, min_tokens=2)
    for token, may_end in ((1, False), (2, True)):
        assert late.accept(token)
        assert (END in mask_of(late)) == may_end
    # The request's own stop token is a text's, too: it ends the row, so it must wait as well.
    early = follow(compiled, stop_token_ids=frozenset({3}), min_tokens=1)
    assert 3 not in mask_of(early)
    assert early.accept(1)
    assert {3, END} <= set(mask_of(early))
    only = compiler.compile(Grammar("regex", "33?", "regex"))
    must = follow(only, stop_token_ids=frozenset({3}), min_tokens=9)
    assert mask_of(must) == [3]


def test_a_token_outside_the_grammar_is_rejected(compiler: GrammarCompiler) -> None:
    assert not follow(compiler.compile(GRAMMARS[1])).accept(30)


@pytest.mark.parametrize("vocab_size", [20, VOCAB, 4000])
def test_ids_without_text_are_never_allowed(vocab_size: int) -> None:
    """A model's vocabulary may be larger than its tokenizer's, or smaller."""
    grammar = Grammar("regex", r"(?s:.)*", "regex")
    compiled = GrammarCompiler(json_tokenizer(), vocab_size).compile(grammar)
    matcher = Matcher(compiled, SamplingParams(), vocab_size)
    assert matcher.words * 32 >= vocab_size
    assert next_tokens(matcher) == [*range(END), compiled.end]
