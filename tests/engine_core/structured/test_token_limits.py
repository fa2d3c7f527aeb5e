"""`allowed_token_ids` and `bad_words`: no token that they forbid is ever sampled."""

from array import array
from typing import Any

import numpy as np
import pytest

from engine_core.messages import GenerateJob, SamplingParams
from engine_core.structured.matcher import TokenLimits
from tests.engine_core.fake_transport import Engine
from tests.engine_core.grammars import END, json_tokenizer
from tests.engine_core.simulated_model import VOCAB, allowed_tokens, next_token, reference
from tests.engine_core.test_core import A, Ledger, idle, ids

FEW = (3, 5, 7, 9)
LIMITS = [
    {"allowed_token_ids": frozenset(FEW)},
    {"bad_words": ((5,), (9,))},
    {"allowed_token_ids": frozenset(FEW), "bad_words": ((3,), (5, 7), (9, 9, 5), (7, 7))},
]


def params_of(**limits: Any) -> SamplingParams:
    return SamplingParams(max_tokens=40, eos_token_ids=frozenset({END}), **limits)


FREE = params_of()


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


def served(*jobs: GenerateJob) -> Ledger:
    engine = Engine(json_tokenizer(), "LlamaForCausalLM", num_blocks=24)
    for job in jobs:
        engine.clients.put(A, job)
    engine.iterate_until(lambda: idle(engine))
    assert engine.core._scheduler.usage().kv_blocks_used == 0
    return Ledger(engine, A)


@pytest.mark.parametrize("limits", LIMITS)
def test_rows_are_limited_beside_others_that_are_not(limits: dict[str, Any]) -> None:
    params = [FREE, params_of(**limits)] * 2
    jobs = [GenerateJob(job, params=params[job], ids=[ids(3, job)], n=2) for job in range(4)]
    ledger = served(*jobs)
    for job in range(4):
        text = expected([3, job], params[job])
        assert [ledger.tokens[job, row] for row in range(2)] == [text] * 2
        assert ledger.finished[job, 0] == ("stop" if text[-1] == END else "length")


@pytest.mark.parametrize("field", ["allowed_token_ids", "bad_words"])
@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_outside_the_vocabulary_are_refused(field: str, token: int) -> None:
    value = frozenset({token}) if field == "allowed_token_ids" else ((token,),)
    failed = served(GenerateJob(1, params=params_of(**{field: value}), ids=[ids(3)])).failed[1]
    assert (failed.code, failed.param) == ("invalid_request", field)


def test_a_row_for_which_no_token_is_left_fails() -> None:
    none_left = params_of(allowed_token_ids=frozenset({5}), bad_words=((5, 5, 5),))
    jobs = (GenerateJob(job, params=own, ids=[ids(3)]) for job, own in ((1, none_left), (2, FREE)))
    ledger = served(*jobs)
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
