"""Text generation."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from engine_core.loop.admission import prompt_tokens
from engine_core.loop.jobs import Job
from engine_core.messages import Accepted, GenerateJob, JobMessage, ReadJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.request import Request, row_seed
from engine_core.structured.compiler import Compiled, compiler_for
from engine_core.structured.matcher import Matcher, TokenLimits
from engine_core.structured.turn_matcher import CompiledTurn, TurnMatcher
from engine_core.tokenization.tokenized import Tokenized
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.base import (
    Prepared,
    RowLimit,
    Workflow,
    check_vocabulary,
    outside_vocabulary,
)
from engine_core.workflows.compiler_threads import CompilerThreads
from engine_core.workflows.read import rows_to_read, texts_to_read
from engine_core.workflows.tokenizer_threads import JobInputs, Text, TokenizerThreads
from workers.contract.config import ExecutionConfig, Task

MAX_PROMPT_SCORES = 1 << 22
"""Most log-probabilities of prompts in the answer to one job of a client."""


class DecoderPreprocessor(TokenizerThreads):
    """Tokenizes the prompts of a job, then compiles its grammar."""

    def __init__(self, config: ExecutionConfig, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, config.max_model_len)
        self._compiler_threads = CompilerThreads(compiler_for(config, tokenizer), self._ready)
        weakref.finalize(self, self._compiler_threads.close)

    def put(self, job: Job, texts: list[Text]) -> JobInputs | None:
        done = super().put(job, texts)
        return done if done is not None and self._is_compiled(done) else None

    def take(self) -> list[JobInputs]:
        return [inputs for inputs in super().take() if self._is_compiled(inputs)]

    def _is_compiled(self, inputs: JobInputs) -> bool:
        """Whether the job needs no grammar, or has it. Otherwise have it compiled."""
        message = inputs.job.message
        params = message.params if isinstance(message, GenerateJob) else None
        grammar = params and (params.turn or params.grammar)
        if grammar is None or inputs.refusal is not None or inputs.grammar is not None:
            return True
        return not inputs.job.ended and self._compiler_threads.put(inputs, grammar)


class DecoderProcessor:
    """Turns each prompt into `n` requests, each made when its turn has come. One alone must fit the
    model and the KV cache."""

    def __init__(self, config: ExecutionConfig, num_blocks: int) -> None:
        self._vocab_size = config.model.vocab_size
        self._limit = RowLimit.of(config, num_blocks)

    def texts(self, message: JobMessage) -> list[Text]:
        if isinstance(message, ReadJob):
            return texts_to_read(message, self._vocab_size)
        return list(message.texts)

    def prepare(self, inputs: JobInputs) -> Prepared:
        job, tokenized, grammar = inputs.job, inputs.tokenized, inputs.grammar
        message = job.message
        if isinstance(message, ReadJob):
            return rows_to_read(inputs, message, self._limit, self._vocab_size)
        assert isinstance(message, GenerateJob)
        self._check_ids(message.params)
        prompts = [array("i", text.ids) for text in tokenized]
        if not message.batch:
            _check_scores(message, prompts)
        limits = [self._max_len(message, index, text) for index, text in enumerate(tokenized)]
        barred = self._barred(message.params)
        unscored = message.params
        limited = unscored.allowed_token_ids or unscored.bad_words
        token_limits = TokenLimits(unscored, self._vocab_size) if limited else None
        if message.params.prompt_logprobs is not None:
            # The first row of a prompt scores it.
            unscored = msgspec.structs.replace(message.params, prompt_logprobs=None)

        def requests() -> Iterator[Request]:
            for index, tokens in enumerate(prompts):
                first: Request | None = None
                for choice in range(message.n):
                    request = Request(
                        job=job,
                        row=index * message.n + choice,
                        params=unscored if choice else message.params,
                        tokens=tokens[:],
                        max_len=limits[index],
                        seed=row_seed(message.params.seed, choice),
                        matcher=grammar and self._matcher(grammar, message.params),
                        limits=token_limits,
                        barred=barred,
                        scored_by=first,
                    )
                    first = first or (request if request.awaits_scores else None)
                    yield request

        counts, ids = [*map(len, prompts)], [text.ids for text in tokenized]
        ignored = grammar.ignored if grammar else ()
        accepted = Accepted(message.id, counts, ids, ignored=ignored)
        return Prepared(requests(), prompt_tokens(message, accepted), accepted)

    def _matcher(self, grammar: Compiled, params: SamplingParams) -> Matcher | TurnMatcher:
        if isinstance(grammar, CompiledTurn):
            return TurnMatcher(grammar, params, self._vocab_size)
        return Matcher(grammar, params, self._vocab_size)

    def _barred(self, params: SamplingParams) -> bytes:
        """The tokens that must not come before `min_tokens` others, int32. A grammar's matcher
        forbids them itself, unless the text cannot go on."""
        if params.min_tokens == 0 or params.grammar is not None or params.turn is not None:
            return b""
        own = frozenset[int]() if params.ignore_eos else params.eos_token_ids
        ends = params.stop_token_ids | own
        return array("i", [token for token in ends if 0 <= token < self._vocab_size]).tobytes()

    def _check_ids(self, params: SamplingParams) -> None:
        named = {
            "logit_bias": params.logit_bias,
            "allowed_token_ids": params.allowed_token_ids,
            "bad_words": chain.from_iterable(params.bad_words),
        }
        for field, ids in named.items():
            for token in ids:
                if not 0 <= token < self._vocab_size:
                    raise outside_vocabulary(field, "names", token, self._vocab_size)
        ids = params.logprob_token_ids
        check_vocabulary("logprob_token_ids", "names", ids, self._vocab_size)

    def _max_len(self, message: GenerateJob, index: int, prompt: Tokenized) -> int:
        """The length at which the request ends, prompt included."""
        many = len(message.texts) + len(message.ids) > 1
        param = f"prompt[{index}]" if many else "prompt"
        if not prompt.num_tokens:
            raise RefusalError("invalid_request", f"{param} has no tokens", param)
        check_vocabulary(param, "holds", prompt.ids, self._vocab_size)
        return self._checked_len(message.params, prompt, param)

    def _checked_len(self, params: SamplingParams, prompt: Tokenized, param: str) -> int:
        prompt_len, limit = prompt.num_tokens, self._limit.tokens
        most = None if params.lowered_to_fit else params.max_tokens
        # Where the request does not say how many, there must be room for at least one token.
        needed = prompt_len + (1 if most is None else most)
        if needed > limit:
            has = prompt.described + ("" if most is None else f" and {most} to generate")
            is_long = prompt_len >= limit or most is None
            raise self._limit.exceeded(param, has, None if is_long else "max_tokens")
        return limit if params.max_tokens is None else min(prompt_len + params.max_tokens, limit)


def _check_scores(message: GenerateJob, prompts: list[array[int]]) -> None:
    """Raises RefusalError if the answer would hold too many log-probabilities of prompts.

    Each token has its own and those of its alternatives. Each choice repeats them.
    """
    width = message.params.prompt_logprobs
    if width is None:
        return
    tokens = sum(map(len, prompts))
    scores = tokens * (width + 1) * message.n
    if scores > MAX_PROMPT_SCORES:
        reason = (
            f"{tokens} prompt tokens x ({width} + 1) log-probabilities x {message.n} choices are "
            f"{scores}; at most {MAX_PROMPT_SCORES} are returned"
        )
        raise RefusalError("too_large", reason, "prompt")


WORKFLOWS: Mapping[Task, Workflow] = {
    "generate": Workflow(
        task="generate",
        operations=frozenset({"generate text", "read logits"}),
        preprocessor=DecoderPreprocessor,
        processor=DecoderProcessor,
        scheduler=DecoderScheduler,
        vector_size=lambda _: 0,
    )
}
