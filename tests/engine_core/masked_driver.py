"""A scheduler by hand with constrained requests."""

from array import array
from functools import cache

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, Grammar, SamplingParams
from engine_core.schedulers.request import Request
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
        assert params.max_tokens is not None
        job = Job(b"client", GenerateJob(job_id, params=params), rows, 0)
        requests = [
            Request(
                job,
                row,
                params,
                array("i", prompt),
                max_len=len(prompt) + params.max_tokens,
                seed=0,
                matcher=Matcher(compiled(params.grammar), params, VOCAB),
            )
            for row in range(rows)
        ]
        self.scheduler.add(job, requests)
        return job

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
