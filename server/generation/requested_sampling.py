"""The engine's sampling parameters for a request."""

import msgspec

from engine_core.messages import SamplingParams
from server.errors import APIError
from server.generation.requested_grammar import grammar_of
from server.schemas.common import INT64_MAX
from server.schemas.sampling import SamplingOptions
from server.settings.server_config import GenerationDefaults
from workers.contract.token_sampling import TokenSampling


def sampling_params(
    body: SamplingOptions,
    defaults: GenerationDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    default_max_tokens: int | None = None,
) -> SamplingParams:
    """The engine's parameters: `body` over the model's own `defaults`. Without `max_tokens` there
    are `default_max_tokens`, or as many as fit. Raises APIError."""
    most = default_max_tokens if max_tokens is None else max_tokens
    return SamplingParams(
        sampling=_sampling(body, defaults),
        logit_bias=body.logit_bias or {},
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


def _sampling(body: SamplingOptions, defaults: GenerationDefaults) -> TokenSampling:
    """The request's parameters over the model's own, in the ranges that workers know."""
    sampling = defaults.sampling.overridden_by(body)
    if sampling.top_k < 0:  # as clients switch it off
        sampling = msgspec.structs.replace(sampling, top_k=0)
    if sampling.top_p == 0:  # keeps the likeliest token alone
        sampling = msgspec.structs.replace(sampling, temperature=0.0, top_p=1.0)
    return sampling


def _min_tokens(body: SamplingOptions, max_tokens: int | None) -> int:
    least = body.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        message = f"min_tokens: {least} is more than the limit of {max_tokens} generated tokens"
        raise APIError("invalid_request", message, "min_tokens")
    return least
