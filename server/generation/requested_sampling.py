"""The engine's sampling parameters for a request."""

from array import array

import msgspec

from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError
from server.generation.requested_grammar import grammar_of
from server.schemas.common import INT64_MAX
from server.schemas.sampling import SamplingOptions
from server.service.inputs import check_ids
from server.service.service import Model
from server.settings.settings import GenerationDefaults
from workers.contract.token_sampling import TokenSampling


def sampling_params(
    body: SamplingOptions,
    model: Model,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    default_max_tokens: int | None = None,
) -> SamplingParams:
    """The engine's parameters: `body` over the model's own defaults. Without `max_tokens` there
    are `default_max_tokens`, or as many as fit. Raises RefusalError."""
    _check_stream(body)
    defaults = model.served.generation
    most = default_max_tokens if max_tokens is None else max_tokens
    return SamplingParams(
        sampling=_sampling(body, defaults),
        logit_bias=body.logit_bias or {},
        allowed_token_ids=_allowed_tokens(body, model),
        bad_words=_bad_words(body, model),
        grammar=grammar_of(body),
        seed=None if body.seed is None else body.seed & INT64_MAX,
        max_tokens=most,
        lowered_to_fit=max_tokens is None and default_max_tokens is not None,
        min_tokens=_min_tokens(body, most),
        eos_token_ids=frozenset(defaults.eos_token_ids),
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _check_stream(body: SamplingOptions) -> None:
    if body.stream_options is not None and not body.stream:
        message = "stream_options: only with `stream`"
        raise RefusalError("invalid_request", message, "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        message = "prompt_logprobs: not with `stream`"
        raise RefusalError("invalid_request", message, "prompt_logprobs")


def _sampling(body: SamplingOptions, defaults: GenerationDefaults) -> TokenSampling:
    """The request's parameters over the model's own, in the ranges that workers know."""
    sampling = defaults.sampling.overridden_by(body)
    if sampling.top_k < 0:  # as clients switch it off
        sampling = msgspec.structs.replace(sampling, top_k=0)
    if sampling.top_p == 0:  # keeps the likeliest token alone
        sampling = msgspec.structs.replace(sampling, temperature=0.0, top_p=1.0)
    return sampling


def _allowed_tokens(body: SamplingOptions, model: Model) -> frozenset[int]:
    if not body.allowed_token_ids:
        return frozenset()
    check_ids(body.allowed_token_ids, "allowed_token_ids", model.vocab_size)
    return frozenset(body.allowed_token_ids)


def _bad_words(body: SamplingOptions, model: Model) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text, and as it follows a space."""
    if not body.bad_words:
        return ()
    words = [word.lstrip() or word for word in body.bad_words]
    spellings = [*words, *(f" {word}" for word in words)]
    found = model.tokenizer.encode(spellings, add_special_tokens=False)
    ids = (tuple(array("i", each)) for each in found)
    return tuple(dict.fromkeys(word for word in ids if word))


def _min_tokens(body: SamplingOptions, max_tokens: int | None) -> int:
    least = body.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        message = f"min_tokens: {least} is more than the limit of {max_tokens} generated tokens"
        raise RefusalError("invalid_request", message, "min_tokens")
    return least
