"""From what a request asks of its sampling, its prompt and its text to what the engine is told."""

import msgspec

from engine_core.messages import SamplingParams, Tokenization
from server.errors import APIError
from server.generation.plan import GenerationPlan
from server.generation.requested_grammar import grammar_of
from server.generation.stream import StreamedUsage
from server.schemas.common import INT64_MAX
from server.schemas.sampling import SamplingOptions
from server.service.inputs import Items, check_ids
from server.service.registry import Model
from server.service.truncation import truncation_limit
from server.settings.server_config import GenerationDefaults, Limits


def generation_plan(
    body: SamplingOptions,
    model: Model,
    limits: Limits,
    *,
    prompts: Items,
    params: SamplingParams,
    logprobs: int | None = None,
    add_special_tokens: bool = True,
) -> GenerationPlan:
    """The request with all options that every request for text has. Raises APIError."""
    check_ids(body.stop_token_ids or [], "stop_token_ids", model.vocab_size)
    n = choices(body, limits)
    return GenerationPlan(
        prompts=prompts,
        n=n,
        width=n,
        params=params,
        stops=stop_strings(body),
        logprobs=logprobs,
        echo=False,
        cache_salt=body.cache_salt or "",
        tokenization=Tokenization(
            add_special_tokens=add_special_tokens,
            truncate_to=_prompt_limit(body, model.max_model_len, params.max_tokens),
            truncation_side=body.truncation_side or "left",
        ),
        priority=body.priority or 0,
        timeout=body.timeout,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
    )


def sampling_params(
    body: SamplingOptions,
    defaults: GenerationDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The engine's parameters: `body` over the model's own `defaults`. Raises APIError."""
    sampling = defaults.sampling.overridden_by(body)
    if sampling.top_k < 0:  # as clients switch it off
        sampling = msgspec.structs.replace(sampling, top_k=0)
    return SamplingParams(
        sampling=sampling,
        logit_bias=body.logit_bias or {},
        grammar=grammar_of(body),
        seed=None if body.seed is None else body.seed & INT64_MAX,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(body, max_tokens),
        eos_token_ids=frozenset(defaults.eos_token_ids),
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def stop_strings(body: SamplingOptions) -> tuple[str, ...]:
    """The texts that end a choice."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def choices(body: SamplingOptions, limits: Limits) -> int:
    """How many a request asks for, of each prompt. Raises APIError."""
    n = body.n or 1
    check_choices(n, "n", limits)
    return n


def check_choices(count: int, field: str, limits: Limits) -> None:
    """Raises APIError if a request asks for more choices of a prompt than it may."""
    if count > limits.max_n:
        raise APIError("too_large", f"{field}: {count}; a request takes {limits.max_n}", field)


def streamed_usage(body: SamplingOptions) -> StreamedUsage:
    """What a stream tells of its usage. Raises APIError for stream options without a stream."""
    asked = body.stream_options
    if asked is None:
        return StreamedUsage(at_end=False, in_pieces=False)
    if not body.stream:
        raise APIError(
            "invalid_request", "stream_options: only with `stream`", param="stream_options"
        )
    return StreamedUsage(
        at_end=bool(asked.include_usage), in_pieces=bool(asked.continuous_usage_stats)
    )


def _prompt_limit(body: SamplingOptions, model_len: int, max_tokens: int | None) -> int | None:
    """The tokens that a prompt is cut to: at most so many that those to generate have room."""
    longest = max(model_len - (1 if max_tokens is None else max_tokens), 1)
    return truncation_limit(body.truncate_prompt_tokens, model_len, longest=longest)


def _min_tokens(body: SamplingOptions, max_tokens: int | None) -> int:
    least = body.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        message = f"min_tokens: {least} is more than the {max_tokens} tokens to generate at most"
        raise APIError("invalid_request", message, "min_tokens")
    return least
