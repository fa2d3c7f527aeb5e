"""Text generation."""

from __future__ import annotations

from array import array

from engine_core.config import EngineConfig
from engine_core.job import Job, RefusalError
from engine_core.messages import Accepted, EncodeJob, GenerateJob, SamplingParams
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.request import Request, row_seed
from engine_core.structured.grammar import Matcher
from engine_core.tokenization.tokenizer_threads import Text, Tokenized
from engine_core.workflows.base import Workflow


class DecoderProcessor:
    """Prompts → requests, `n` for each, each known to fit the model and the KV cache alone."""

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self._vocab_size = config.model.vocab_size
        self._max_model_len = config.max_model_len
        self._kv_tokens = num_blocks * config.block_size

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        if isinstance(message, EncodeJob):
            raise RefusalError("invalid_request", "this model generates text; it does not embed")
        return list(message.texts)

    def prepare(self, job: Job, tokenized: list[Tokenized]) -> tuple[Accepted, list[Request]]:
        message = job.message
        assert isinstance(message, GenerateJob)
        self._check_biases(message.params)
        prompts = [array("i", text.ids) for text in tokenized]
        limits = [self._max_len(message, index, tokens) for index, tokens in enumerate(prompts)]
        barred = self._barred(message.params)
        requests = [
            Request(
                job=job,
                row=index * message.n + choice,
                params=message.params,
                tokens=tokens[:],
                max_len=limits[index],
                seed=row_seed(message.params.seed, choice),
                matcher=self._matcher(job, message.params),
                barred=barred,
                salt=message.cache_salt.encode(),
                priority=message.priority,
            )
            for index, tokens in enumerate(prompts)
            for choice in range(message.n)
        ]
        counts, ids = [len(tokens) for tokens in prompts], [text.ids for text in tokenized]
        return Accepted(message.id, counts, ids), requests

    def _matcher(self, job: Job, params: SamplingParams) -> Matcher | None:
        return Matcher(job.grammar, params, self._vocab_size) if job.grammar is not None else None

    def _barred(self, params: SamplingParams) -> bytes:
        """The tokens that must not come before `min_tokens` others, int32. Those of a grammar are
        its matcher's business, which knows where the text cannot go on."""
        if params.min_tokens == 0 or params.grammar is not None:
            return b""
        own = frozenset[int]() if params.ignore_eos else params.eos_token_ids
        ends = params.stop_token_ids | own
        return array("i", [token for token in ends if 0 <= token < self._vocab_size]).tobytes()

    def _check_biases(self, params: SamplingParams) -> None:
        for token in params.logit_bias:
            if not 0 <= token < self._vocab_size:
                raise RefusalError(
                    "invalid_request",
                    f"logit_bias names token id {token}; this model's vocabulary ends at "
                    f"{self._vocab_size - 1}",
                    "logit_bias",
                )

    def _max_len(self, message: GenerateJob, index: int, tokens: array[int]) -> int:
        """The length at which the request ends, prompt included."""
        many = len(message.texts) + len(message.ids) > 1
        param = f"prompt[{index}]" if many else "prompt"
        if not tokens:
            raise RefusalError("invalid_request", f"{param} has no tokens", param)
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < self._vocab_size)
            raise RefusalError(
                "invalid_request",
                f"{param} holds token id {wrong}; this model's vocabulary ends at "
                f"{self._vocab_size - 1}",
                param,
            )
        return self._checked_len(message.params.max_tokens, len(tokens), param)

    def _checked_len(self, max_tokens: int | None, prompt_len: int, param: str) -> int:
        limit = min(self._max_model_len, self._kv_tokens)
        what = "context length" if limit == self._max_model_len else "KV cache"
        # Without max_tokens there must be room for one token at least.
        wanted = prompt_len + (1 if max_tokens is None else max_tokens)
        if wanted > limit:
            asked = "" if max_tokens is None else f" and {max_tokens} to generate"
            raise RefusalError(
                "context_length_exceeded",
                f"this model's {what} is {limit} tokens; {param} has {prompt_len}{asked}",
                param if prompt_len >= limit or max_tokens is None else "max_tokens",
            )
        return limit if max_tokens is None else wanted


WORKFLOW = Workflow(
    head="generate",
    tasks=("generate",),
    processor=DecoderProcessor,
    scheduler=DecoderScheduler,
    vector_size=lambda _: 0,
)
