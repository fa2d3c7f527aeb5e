"""A request for embeddings, checked and then answered by vectors."""

from collections.abc import Mapping

import msgspec
from starlette.requests import Request

from engine_core.client.encode_calls import Encoded
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.echoed import quoted
from server.encoding.encode import encode, job_options
from server.encoding.vectors import shorten
from server.schemas.common import name_and_value, value_under_any_name
from server.schemas.embeddings import INPUT_TYPES, EmbeddingRequest, EmbedDtype
from server.service.inputs import Items, parse_items
from server.service.registry import Model
from server.service.truncation import truncation_limit
from server.settings.limits import Limits


def text_prompt(model: Model, prompt_name: str | None, input_type: str | None) -> str:
    """The prompt of this name or for this kind of text; without either the model's default.

    A kind for which the model has no prompt gets none. Raises RefusalError for an unknown name or
    kind, and for both at once.
    """
    if prompt_name is not None and input_type is not None:
        message = "prompt_name and input_type: give only one of them"
        raise RefusalError("invalid_request", message, "prompt_name")
    declared = model.served.execution.model.embedding
    if prompt_name is not None:
        return _named(model.name, declared.prompts, prompt_name)
    if input_type is not None:
        return _for_kind(declared.prompts, input_type)
    return declared.prompts.get(declared.default_prompt_name or "", "")


def behind_prompt(tokenization: Tokenization, model: Model, prompt: str) -> Tokenization:
    """That of texts behind `prompt`, which the model's pooling may leave out.

    Raises RefusalError where such texts are to be cut on the left: little of the prompt would be
    left.
    """
    if not prompt or model.served.execution.model.pooling.include_prompt:
        return tokenization
    if tokenization.truncate_to is not None and tokenization.truncation_side == "left":
        message = f"truncation_side: model {model.name} does not pool its prompts, which stay whole"
        raise RefusalError("invalid_request", message, "truncation_side")
    unpooled = _prompt_tokens(model, prompt, add_special_tokens=tokenization.add_special_tokens)
    return msgspec.structs.replace(tokenization, unpooled=unpooled)


def _prompt_tokens(model: Model, prompt: str, *, add_special_tokens: bool) -> int:
    """The prompt's own, but for a special one at its end: sentence-transformers' rule."""
    (encoding,) = model.tokenizer.encodings([prompt], add_special_tokens=add_special_tokens)
    return len(encoding.ids) - sum(encoding.special_tokens_mask[-1:])


def _named(model: str, prompts: Mapping[str, str], name: str) -> str:
    if name in prompts:
        return prompts[name]
    known = f"has {', '.join(prompts)}" if prompts else "has no prompts"
    message = f"prompt_name: there is no prompt {quoted(name)}; model {model} {known}"
    raise RefusalError("invalid_request", message, "prompt_name")


def _for_kind(prompts: Mapping[str, str], input_type: str) -> str:
    if input_type not in INPUT_TYPES:
        message = f"input_type: {quoted(input_type)} is not one of {', '.join(INPUT_TYPES)}"
        raise RefusalError("invalid_request", message, "input_type")
    names = (input_type, *INPUT_TYPES[input_type])
    return next((prompts[name] for name in names if name in prompts), "")


_DIRECTIONS: tuple[EmbedDtype, ...] = ("int8", "binary", "ubinary")


class EmbeddingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The items to embed, the options of their job, and the form of the vectors returned."""

    items: Items
    options: JobOptions
    dimensions: int
    normalize: bool
    dtype: EmbedDtype


def embedding_plan(
    body: EmbeddingRequest, model: Model, limits: Limits, field: str = "input"
) -> EmbeddingPlan:
    """Check everything that can be wrong with a request before it is tokenized. `field` is its own
    name of `input`. Raises RefusalError."""
    items, prompt = _items(body, model, limits, field)
    tokenization = Tokenization(
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=_input_limit(body, model.max_model_len),
        truncation_side=body.truncation_side or "right",
    )
    return EmbeddingPlan(
        items=items,
        options=job_options(body, behind_prompt(tokenization, model, prompt)),
        dimensions=_dimensions(body, model),
        normalize=_normalize(body, model),
        dtype=_dtype(body),
    )


async def planned_vectors(request: Request, model: Model, plan: EmbeddingPlan) -> Encoded:
    """The vectors that are planned, not yet in the planned type. Raises RefusalError."""
    encoded = await encode(request, model, plan.items, plan.options)
    vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
    return msgspec.structs.replace(encoded, values=vectors)


def _items(body: EmbeddingRequest, model: Model, limits: Limits, field: str) -> tuple[Items, str]:
    """The inputs, texts behind their prompt; and the prompt."""
    items = parse_items(body.input, field, model, limits.max_inputs)
    if "" in items.texts:
        field = items.name(items.texts.index(""))
        raise RefusalError("invalid_request", f"{field}: must not be empty", field)
    named = body.prompt_name is not None or body.input_type is not None
    if items.ids and not named:
        return items, ""
    prompt = text_prompt(model, body.prompt_name, body.input_type)
    if prompt and items.ids:
        field = "prompt_name" if body.prompt_name is not None else "input_type"
        message = f"{field}: is only for texts; token ids are used as they are"
        raise RefusalError("invalid_request", message, field)
    texts = [prompt + text for text in items.texts]
    return msgspec.structs.replace(items, texts=texts), prompt


def _input_limit(body: EmbeddingRequest, model_len: int) -> int | None:
    """The tokens to which an input is cut, None for not at all. Raises RefusalError."""
    field, limit = "truncate_prompt_tokens", body.truncate_prompt_tokens
    if limit is None:
        return model_len if body.truncation else None
    if body.truncation is False:
        message = f"truncation: is false, but {field} is given"
        raise RefusalError("invalid_request", message, "truncation")
    return truncation_limit(limit, model_len, longest=model_len)


def _dimensions(body: EmbeddingRequest, model: Model) -> int:
    """The numbers of a vector: the model's, or fewer where it declares that it may be cut."""
    field, requested = name_and_value(
        ("dimensions", body.dimensions), ("output_dimension", body.output_dimension)
    )
    own, declared = model.served.execution.model.vector_size, model.served.execution.model.embedding
    if requested is None or requested == own:
        return own
    if not declared.is_matryoshka:
        message = f"{field}: vectors of model {model.name} have {own} numbers and cannot be cut"
        raise RefusalError("invalid_request", message, field)
    allowed = declared.matryoshka_dimensions
    if requested in allowed or (not allowed and requested < own):
        return requested
    known = ", ".join(map(str, sorted({*allowed, own}))) if allowed else f"1 to {own}"
    message = f"{field}: {requested} is not a size of model {model.name}'s vectors ({known})"
    raise RefusalError("invalid_request", message, field)


def _normalize(body: EmbeddingRequest, model: Model) -> bool:
    """Whether vectors get length 1: the request's choice, or that of the model's modules."""
    field, requested = name_and_value(
        ("normalize", body.normalize),
        ("use_activation", body.use_activation),
        ("normalized", body.normalized),
    )
    if requested is False and (dtype := _dtype(body)) in _DIRECTIONS:
        message = f"{field}: false is only for floats; {dtype} vectors keep only the direction"
        raise RefusalError("invalid_request", message, field)
    return model.served.execution.model.normalized if requested is None else requested


def _dtype(body: EmbeddingRequest) -> EmbedDtype:
    voyage: EmbedDtype | None = "float32" if body.output_dtype == "float" else body.output_dtype
    requested: EmbedDtype | None = value_under_any_name(
        ("embed_dtype", body.embed_dtype), ("output_dtype", voyage)
    )
    return requested or "float32"
