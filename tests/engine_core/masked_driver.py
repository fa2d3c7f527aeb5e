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
        assert params.grammar is not None
        grammar, fields = compiled(params.grammar), msgspec.structs.asdict(params)
        return self.add_job(
            job_id, [prompt] * rows, matcher=lambda: Matcher(grammar, params, VOCAB), **fields
        )

    def add_free(self, job_id: int, prompt: list[int], params: SamplingParams) -> Job:
        assert params.max_tokens is not None
        stops, ignore_eos = params.eos_token_ids, params.ignore_eos
        return self.add(
            job_id, prompt, params.max_tokens, eos_token_ids=stops, ignore_eos=ignore_eos
        )

    def finish_reason(self, job_id: int) -> str | None:
        finishes = [row.finish for row in self.outputs[job_id] if row.finish is not None]
        assert len(finishes) == 1
        assert self.outputs[job_id][-1].finish == finishes[0]
        return finishes[0]

    def decoded(self, job_id: int) -> str:
        return TOKENIZER.decode(self.text(job_id))


def params_of(
    grammar: Grammar,
    max_tokens: int = 40,
    ends: frozenset[int] = STOPS,
    *,
    ignore_eos: bool = False,
) -> SamplingParams:
    return SamplingParams(
        grammar=grammar, max_tokens=max_tokens, eos_token_ids=ends, ignore_eos=ignore_eos
    )
