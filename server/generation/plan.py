"""A request for text, once it has been checked."""

import msgspec

from engine_core.messages import JobOptions, SamplingParams, Tokenization
from engine_core.refusal import RefusalError
from server.schemas.sampling import SamplingOptions
from server.service.inputs import Items, check_ids, truncation_limit
from server.service.service import Model
from server.settings.settings import Limits


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is generated for a request, and how much of it is returned.

    `width` choices of each prompt are generated, and the best `n` of them returned. `logprobs`
    counts the alternatives returned with each sampled token, None for no log-probabilities at all;
    `params` may request more from the engine. With `echo` a choice's text begins with its prompt.
    `timeout` is in seconds from the moment when it is submitted.
    """

    prompts: Items
    n: int
    width: int
    params: SamplingParams
    stops: tuple[str, ...]
    logprobs: int | None
    echo: bool
    options: JobOptions = JobOptions()
    timeout: float | None = None
    include_stop: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False


def generation_plan(
    body: SamplingOptions,
    model: Model,
    *,
    prompts: Items,
    params: SamplingParams,
    width: int,
    logprobs: int | None,
    add_special_tokens: bool,
    echo: bool = False,
) -> GenerationPlan:
    """Check the options that completions and chat share, and make the plan. Raises RefusalError."""
    check_ids(body.stop_token_ids or [], "stop_token_ids", model.vocab_size)
    tokenization = Tokenization(
        add_special_tokens=add_special_tokens,
        truncate_to=_prompt_limit(body, model.max_model_len, params.max_tokens),
        truncation_side=body.truncation_side or "left",
    )
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return GenerationPlan(
        prompts=prompts,
        n=body.n or 1,
        width=width,
        params=params,
        stops=stops,
        logprobs=logprobs,
        echo=echo,
        options=JobOptions(
            tokenization=tokenization,
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
        ),
        timeout=body.timeout,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        return_token_ids=bool(body.return_token_ids),
    )


def choices(body: SamplingOptions, limits: Limits) -> int:
    """The requested choices of each prompt. Raises RefusalError if there are too many."""
    n = body.n or 1
    check_choices(n, "n", limits)
    return n


def check_choices(count: int, field: str, limits: Limits) -> None:
    """Raises RefusalError, naming `field`, if `count` choices of a prompt are too many."""
    if count > limits.max_n:
        raise RefusalError("too_large", f"{field}: {count}; at most {limits.max_n} choices", field)


def _prompt_limit(body: SamplingOptions, model_len: int, max_tokens: int | None) -> int | None:
    """The tokens to which a prompt is truncated: at least `max_tokens` of `model_len` stay free."""
    longest = max(model_len - (1 if max_tokens is None else max_tokens), 1)
    return truncation_limit(body.truncate_prompt_tokens, model_len, longest=longest)
