"""Which tokens may follow in a row with a grammar, and when its text is complete. No token that
`allowed_token_ids` and `bad_words` forbid is ever sampled."""

from array import array
from typing import Any

import numpy as np
import pytest

from engine_core.messages import GenerateJob, Grammar, SamplingParams
from engine_core.structured.grammar import CompiledGrammar, GrammarCompiler
from engine_core.structured.matcher import Matcher, TokenLimits
from tests.engine_core.fake_transport import Engine
from tests.engine_core.grammars import END, GRAMMARS, json_tokenizer
from tests.engine_core.simulated_model import VOCAB, allowed_tokens, next_token, reference
from tests.engine_core.structured.schemas import next_tokens
from tests.engine_core.test_core import ids, served


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


FEW = (3, 5, 7, 9)
LIMITS = [
    {"allowed_token_ids": frozenset(FEW)},
    {"bad_words": ((5,), (9,))},
    {"allowed_token_ids": frozenset(FEW), "bad_words": ((3,), (5, 7), (9, 9, 5), (7, 7))},
]


def params_of(**limits: Any) -> SamplingParams:
    return SamplingParams(max_tokens=40, eos_token_ids=frozenset({END}), **limits)


FREE = params_of()


def engine() -> Engine:
    return Engine(json_tokenizer(), "LlamaForCausalLM", num_blocks=24)


def permitted(text: list[int], params: SamplingParams) -> list[int]:
    """By the definition: the tokens that are allowed and complete no bad word in `text`."""
    return [
        token
        for token in sorted(params.allowed_token_ids) or range(VOCAB)
        if not any((*text, token)[-len(word) :] == word for word in params.bad_words)
    ]


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    assert params.max_tokens is not None
    text: list[int] = []
    while len(text) < params.max_tokens and END not in text:
        text.append(next_token([*prompt, *text], permitted(text, params)))
    return text


@pytest.mark.parametrize("limits", LIMITS)
def test_rows_are_limited_beside_others_that_are_not(limits: dict[str, Any]) -> None:
    params = [FREE, params_of(**limits)] * 2
    jobs = [GenerateJob(job, params=params[job], ids=[ids(3, job)], n=2) for job in range(4)]
    ledger = served(engine(), *jobs)
    for job in range(4):
        text = expected([3, job], params[job])
        assert [ledger.tokens[job, row] for row in range(2)] == [text] * 2
        assert ledger.finished[job, 0] == ("stop" if text[-1] == END else "length")


@pytest.mark.parametrize("field", ["allowed_token_ids", "bad_words"])
@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_outside_the_vocabulary_are_refused(field: str, token: int) -> None:
    value = frozenset({token}) if field == "allowed_token_ids" else ((token,),)
    job = GenerateJob(1, params=params_of(**{field: value}), ids=[ids(3)])
    failed = served(engine(), job).failed[1]
    assert (failed.code, failed.param) == ("invalid_request", field)


def test_a_row_for_which_no_token_is_left_fails() -> None:
    none_left = params_of(allowed_token_ids=frozenset({5}), bad_words=((5, 5, 5),))
    jobs = (GenerateJob(job, params=own, ids=[ids(3)]) for job, own in ((1, none_left), (2, FREE)))
    ledger = served(engine(), *jobs)
    assert ledger.failed[1].code == "invalid_request"
    assert "leave no token" in ledger.failed[1].message
    assert ledger.tokens[2, 0] == reference([3], 40, frozenset({END}))


def test_words_begin_in_the_text_and_not_in_the_prompt() -> None:
    limits = TokenLimits(params_of(bad_words=((5, 7), (1, 5, 7))), VOCAB)
    for tokens, prompt_len, forbidden in (
        ([1, 5], 2, set()),
        ([1, 5], 1, {7}),
        ([1, 5, 2], 1, set()),
        ([0, 1, 5], 1, {7}),
    ):
        mask = np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)
        assert limits.restrict(mask, array("i", tokens), prompt_len)
        assert set(range(VOCAB)) - {*allowed_tokens(mask)} == forbidden
