"""A scheduler by hand with constrained requests."""

from functools import cache

import msgspec

from engine_core.loop.jobs import Job
from engine_core.messages import Grammar, SamplingParams
from engine_core.structured.grammar import GrammarCompiler
from engine_core.structured.matcher import Matcher
from tests.engine_core.driver import Driver
from tests.engine_core.grammars import END, json_tokenizer
from tests.engine_core.simulated_model import VOCAB

STOPS = frozenset({END})
TOKENIZER = json_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, VOCAB)
compiled = cache(COMPILER.compile)


class MaskedDriver(Driver):
    """A driver whose requests may follow grammars."""

    def constrain(
        self, job_id: int, prompt: list[int], params: SamplingParams, rows: int = 1
    ) -> Job:
        grammar = params.grammar and compiled(params.grammar)
        return self.add_job(
            job_id,
            [prompt] * rows,
            matcher=lambda: grammar and Matcher(grammar, params, VOCAB),
            **msgspec.structs.asdict(params),
        )

    def finish_reason(self, job_id: int) -> str | None:
        finishes = [row.finish for row in self.outputs[job_id] if row.finish is not None]
        assert len(finishes) == 1
        assert self.outputs[job_id][-1].finish == finishes[0]
        return finishes[0]

    def decoded(self, job_id: int) -> str:
        return TOKENIZER.decode(self.text(job_id))


def params_of(
    grammar: Grammar, max_tokens: int = 40, ends: frozenset[int] = STOPS
) -> SamplingParams:
    return SamplingParams(grammar=grammar, max_tokens=max_tokens, eos_token_ids=ends)
