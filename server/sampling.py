"""From what a request asks of its sampling to what the engine is told."""

from engine_core.messages import SamplingParams
from server.config import GenerationDefaults, Limits
from server.errors import APIError
from server.schemas.common import INT64_MAX
from server.schemas.sampling import SamplingOptions
from server.structured import grammar_of


def sampling_params(
    body: SamplingOptions,
    defaults: GenerationDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The engine's parameters; what `body` leaves open is the model's own. Raises APIError."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(top_k, 0),
        seed=None if body.seed is None else body.seed & INT64_MAX,
        stop_token_ids=frozenset(defaults.eos_token_ids),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=body.logit_bias or {},
        grammar=grammar_of(body),
    )


def stop_strings(body: SamplingOptions) -> tuple[str, ...]:
    """The texts that end a choice."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def choices(body: SamplingOptions, limits: Limits) -> int:
    """How many a request asks for, of each prompt. Raises APIError."""
    n = body.n or 1
    if n > limits.max_n:
        raise APIError("too_large", f"n: {n}; a request takes {limits.max_n}", "n")
    return n


def streams_usage(body: SamplingOptions) -> bool:
    """Whether a stream ends with its usage. Raises APIError for stream options without a stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise APIError(
            "invalid_request", "stream_options: only with `stream`", param="stream_options"
        )
    return bool(body.stream_options.include_usage)
