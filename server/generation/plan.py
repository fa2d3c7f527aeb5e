"""The plan of a checked request for text."""

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from engine_core.messages import Grammar, GrammarKind, JobOptions, SamplingParams, Tokenization
from engine_core.refusal import RefusalError
from engine_core.turn_format import TurnFormat
from server.schemas.common import INT64_MAX, invalid
from server.schemas.sampling import (
    MAX_GRAMMAR_CHARS,
    JsonObject,
    JsonSchema,
    JsonValue,
    NamedSchema,
    PlainText,
    RegexValue,
    ResponseFormat,
    SamplingOptions,
    SchemaText,
    StructuredOutputs,
)
from server.service.inputs import Items, check_ids, truncation_limit
from server.service.service import Model
from server.settings.settings import GenerationDefaults, Limits
from workers.contract.token_sampling import TokenSampling

_ID_BYTES = 4
_NO_PROMPTS = Items([], [], str)
_JSON_SCHEMA, _VALUE = "response_format.json_schema", "response_format.value"
_ANY_OBJECT = '{"type": "object"}'


class TurnReading(msgspec.Struct, frozen=True, kw_only=True):
    """How an assistant's turn is read: its form, the schemas of the arguments of tools by name, and
    the end of the prompt, which tells whether it begins inside reasoning."""

    form: TurnFormat
    tools: dict[str, dict[str, Any]]
    prompt_end: str


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The generation for a request, and the part of it that is returned.

    `width` choices of each prompt are generated, the best `n` returned, with `logprobs`
    alternatives to each sampled token (None: no log-probabilities); `params` may ask the engine for
    more. `echo` begins a choice's text with its prompt. `timeout` is in seconds. Without a `turn`
    all is text.
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
    turn: TurnReading | None = None


def generation_plan(
    body: SamplingOptions,
    model: Model,
    *,
    width: int,
    max_tokens: int | None,
    default_max_tokens: int | None,
    logprobs: int | None,
    add_special_tokens: bool,
    echo: bool = False,
) -> GenerationPlan:
    """Check the common options of completions and chat, and make the plan without prompts. The
    default limit, None for all that fit, replaces a missing one. Raises RefusalError."""
    most = default_max_tokens if max_tokens is None else max_tokens
    params = _sampling_params(body, model, most, logprobs)
    # More choices are ranked by their tokens' log-probabilities, which the engine then reports.
    ranked = width > (body.n or 1) and logprobs is None
    of_prompts = [logprobs if echo else None, body.prompt_logprobs]
    return GenerationPlan(
        prompts=_NO_PROMPTS,
        n=body.n or 1,
        width=width,
        params=msgspec.structs.replace(
            params,
            lowered_to_fit=max_tokens is None and default_max_tokens is not None,
            logprobs=0 if ranked or params.logprob_token_ids else logprobs,
            prompt_logprobs=max((each for each in of_prompts if each is not None), default=None),
        ),
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=len(params.logprob_token_ids) // _ID_BYTES or logprobs,
        echo=echo,
        options=JobOptions(
            tokenization=Tokenization(
                add_special_tokens=add_special_tokens,
                truncate_to=_prompt_limit(body, model.max_model_len, params.max_tokens),
                truncation_side=body.truncation_side or "left",
            ),
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
        ),
        timeout=body.timeout,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        return_token_ids=bool(body.return_token_ids),
    )


def _prompt_limit(body: SamplingOptions, model_len: int, max_tokens: int | None) -> int | None:
    """The tokens to which a prompt is truncated, so that `max_tokens` of `model_len` stay free."""
    longest = max(model_len - (1 if max_tokens is None else max_tokens), 1)
    return truncation_limit(body.truncate_prompt_tokens, model_len, longest=longest)


def choices(body: SamplingOptions, limits: Limits) -> int:
    """The requested choices of each prompt. Raises RefusalError if there are too many."""
    n = body.n or 1
    check_choices(n, "n", limits)
    return n


def check_choices(count: int, field: str, limits: Limits) -> None:
    """Raises RefusalError, naming `field`, if `count` choices of a prompt are too many."""
    if count > limits.max_n:
        raise RefusalError("too_large", f"{field}: {count}; at most {limits.max_n} choices", field)


def _sampling_params(
    body: SamplingOptions, model: Model, most: int | None, logprobs: int | None
) -> SamplingParams:
    """The engine's parameters for `most` tokens: `body` over the model's defaults. Raises
    RefusalError."""
    _check_stream(body)
    named, field = body.logprob_token_ids or [], "logprob_token_ids"
    if named and (logprobs is None or most == 0):
        raise invalid(field, "only with `logprobs`, and where tokens are generated")
    check_ids(named, field, model.vocab_size)
    defaults = model.served.generation
    return SamplingParams(
        sampling=_sampling(body, defaults),
        logit_bias=body.logit_bias or {},
        allowed_token_ids=_checked_ids(body.allowed_token_ids, "allowed_token_ids", model),
        bad_words=_bad_words(body, model),
        grammar=grammar_of(body),
        seed=None if body.seed is None else body.seed & INT64_MAX,
        max_tokens=most,
        min_tokens=_min_tokens(body, most),
        eos_token_ids=frozenset(defaults.eos_token_ids),
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=_checked_ids(body.stop_token_ids, "stop_token_ids", model),
        logprob_token_ids=array("i", dict.fromkeys(named)).tobytes(),
    )


def _check_stream(body: SamplingOptions) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only with `stream`")
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "not with `stream`")


def _sampling(body: SamplingOptions, defaults: GenerationDefaults) -> TokenSampling:
    """The request's parameters over the model's own, in the workers' ranges."""
    sampling = defaults.sampling.overridden_by(body)
    if sampling.top_k < 0:  # as clients switch it off
        sampling = msgspec.structs.replace(sampling, top_k=0)
    if sampling.top_p == 0:  # keeps the likeliest token alone
        sampling = msgspec.structs.replace(sampling, temperature=0.0, top_p=1.0)
    return sampling


def _checked_ids(ids: list[int] | None, field: str, model: Model) -> frozenset[int]:
    check_ids(ids or [], field, model.vocab_size)
    return frozenset(ids or ())


def _bad_words(body: SamplingOptions, model: Model) -> tuple[tuple[int, ...], ...]:
    """The ids of each word at the beginning of a text, and behind a space."""
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
        raise invalid(
            "min_tokens", f"{least} is more than the limit of {max_tokens} generated tokens"
        )
    return least


def grammar_of(body: SamplingOptions) -> Grammar | None:
    """The grammar of a request, if any. Raises RefusalError, naming the field: different grammars,
    a schema that is no object, one that is too large."""
    requested = list(_requested(body))
    for grammar in requested:
        if (grammar.kind, grammar.source) != (requested[0].kind, requested[0].source):
            raise invalid(grammar.param, f"not together with {requested[0].param}")
        if len(grammar.source) > MAX_GRAMMAR_CHARS:
            raise RefusalError(
                "too_large",
                f"{grammar.param}: {len(grammar.source)} characters of JSON; at most "
                f"{MAX_GRAMMAR_CHARS} are allowed",
                grammar.param,
            )
    return requested[0] if requested else None


def _requested(body: SamplingOptions) -> Iterator[Grammar]:
    """Yield the grammars of the request's fields, under all their names."""
    yield from _from_format(body.response_format)
    outputs = body.structured_outputs or StructuredOutputs()
    yield from _from_schema(body.json_schema, "json_schema")
    yield from _from_schema(body.guided_json, "guided_json")
    yield from _from_schema(outputs.json, "structured_outputs.json")
    if outputs.json_object:
        yield Grammar("json_schema", _ANY_OBJECT, "structured_outputs.json_object")
    for param, regex in (
        ("regex", body.regex),
        ("guided_regex", body.guided_regex),
        ("structured_outputs.regex", outputs.regex),
    ):
        if regex is not None:
            yield Grammar("regex", regex, param)
    for param, choice in (
        ("choice", body.choice),
        ("guided_choice", body.guided_choice),
        ("structured_outputs.choice", outputs.choice),
    ):
        if choice is not None:
            yield Grammar("choice", msgspec.json.encode(choice).decode(), param)


def _from_format(requested: ResponseFormat | None) -> Iterator[Grammar]:
    match requested:
        case JsonObject(schema=schema, value=value):
            given = [*_from_schema(schema, "response_format.schema"), *_from_schema(value, _VALUE)]
            yield from given or [Grammar("json_schema", _ANY_OBJECT, "response_format")]
        case JsonSchema(json_schema=named, value=value):
            given = [*_from_named(named, _JSON_SCHEMA), *_from_named(value, _VALUE)]
            if not given:
                raise invalid(_JSON_SCHEMA, "missing")
            yield from given
        case JsonValue(value=value):
            given = list(_from_schema(value, _VALUE))
            if not given:
                raise invalid(_VALUE, "expected an object")
            yield from given
        case RegexValue(value=value):
            yield Grammar("regex", value, _VALUE)
        case PlainText() | None:
            return


def _from_named(named: NamedSchema | None, param: str) -> Iterator[Grammar]:
    if named is not None:
        kind: GrammarKind = "loose_json_schema" if named.strict is False else "json_schema"
        yield _grammar(bytes(named.schema).decode(), f"{param}.schema", kind)


def _from_schema(raw: SchemaText | UnsetType, param: str) -> Iterator[Grammar]:
    """Yield a schema that may be in a string, or absent. Raises RefusalError."""
    text = "null" if raw is UNSET else bytes(raw).decode()
    is_string = text.startswith('"')
    if is_string:
        try:
            text = msgspec.json.decode(text, type=str).strip()
        except msgspec.DecodeError as error:
            raise invalid(param, f"{error}") from None
    if is_string or text != "null":
        yield _grammar(text, param)


def _grammar(schema: str, param: str, kind: GrammarKind = "json_schema") -> Grammar:
    if not schema.startswith("{"):
        raise invalid(param, "expected an object")
    return Grammar(kind, schema, param)
