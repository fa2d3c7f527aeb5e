"""`/v1/embeddings`: a vector for each input."""

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Request
from msgspec import UNSET, Raw

from engine_core.client.pending_jobs import Encoded, FloatArray, OfTokens
from engine_core.messages import JobOptions, Output, Tokenization
from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.encode import count_usage, encode, job_options
from server.api.input_or_chat import input_items, rendered
from server.api.token_outputs import lexical_weights, of_each_text
from server.errors import quoted
from server.schemas.common import invalid, name_and_value, value_under_any_name
from server.schemas.embeddings import (
    INPUT_TYPES,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    EmbedDtype,
)
from server.service.endpoint import Endpoint
from server.service.inputs import Items, truncation_limit
from server.service.service import Model, service_of
from server.settings.settings import Limits
from workers.contract.model_config import ModelConfig, TokenOutput

AnyArray = npt.NDArray[Any]
_MIN_LENGTH = np.float32(1e-12)
_MAX_FLOAT16 = 65_504.0
_MAX_INT8 = 127
_NUMBERS_AT_ONCE = 1 << 15
_DIRECTIONS: tuple[EmbedDtype, ...] = ("int8", "binary", "ubinary")


class EmbeddingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The items to embed, the options of their job, and the form of the vectors returned."""

    items: Items
    options: JobOptions
    dimensions: int
    normalize: bool
    dtype: EmbedDtype


@answers(Endpoint("POST", "/v1/embeddings", "OpenAI", tasks=("embed",), order=30))
async def create_embeddings(
    request: Request, body: EmbeddingRequest, model: Model
) -> EmbeddingList:
    """Embed one or more texts, or lists of token ids, or the prompt of a chat."""
    asked, field = await rendered(request, body, model)
    plan = embedding_plan(asked, model, service_of(request).limits, field)
    form = in_base64 if body.encoding_format == "base64" else in_lists
    encoded, of_tokens = await _all_vectors(request, model, plan, _outputs(body, model), form)
    rows = await rows_in_json(quantize(encoded.values, plan.dtype), form)
    data = [
        Embedding(
            index=index,
            embedding=row,
            truncated=True if encoded.dropped and encoded.dropped[index] > 0 else UNSET,
            **of_tokens[index],
        )
        for index, row in enumerate(rows)
    ]
    return EmbeddingList(data=data, model=model.name, usage=count_usage(encoded))


def _outputs(body: EmbeddingRequest, model: Model) -> tuple[Output, ...]:
    """The vector, and what else is asked for. Raises RefusalError for what the model has not."""
    asked: dict[TokenOutput, tuple[str, bool | None]] = {
        "token_weights": ("return_sparse", body.return_sparse),
        "token_vectors": ("return_colbert_vecs", body.return_colbert_vecs),
    }
    able = model.served.execution.model.token_modules
    for name, (field, wanted) in asked.items():
        if wanted and name not in able:
            raise invalid(field, f"model {model.name} has one dense vector of a text, and no other")
    return ("vector", *(name for name, (_, wanted) in asked.items() if wanted))


async def _all_vectors(
    request: Request,
    model: Model,
    plan: EmbeddingPlan,
    outputs: tuple[Output, ...],
    form: Callable[[AnyArray], bytes],
) -> tuple[Encoded, list[dict[str, Any]]]:
    """The vectors of a plan, and the fields of each text's others, all of one pass."""
    if len(outputs) == 1:
        encoded = await planned_vectors(request, model, plan)
        return encoded, [{}] * len(encoded.values)
    encoded = await encode(request, model, plan.items, plan.options, of_tokens=OfTokens(outputs))
    dense: list[FloatArray] = []
    fields: list[dict[str, Any]] = []
    texts = of_each_text(encoded, outputs, model.served.execution.model)
    for own, ids in zip(texts, encoded.prompt_ids, strict=True):
        named = dict(zip(outputs, own, strict=True))
        dense.append(named["vector"])
        others: dict[str, Any] = {}
        if (weights := named.get("token_weights")) is not None:
            others["lexical_weights"] = lexical_weights(weights, ids, model.special_ids)
        if (states := named.get("token_vectors")) is not None:
            vectors = shorten(states[1:], states.shape[1], normalize=True)
            (others["colbert_vecs"],) = await rows_in_json([vectors], form)
        fields.append(others)
    vectors = shorten(np.stack(dense), plan.dimensions, normalize=plan.normalize)
    return msgspec.structs.replace(encoded, values=vectors), fields


def embedding_plan(
    body: EmbeddingRequest, model: Model, limits: Limits, field: str = "input"
) -> EmbeddingPlan:
    """Check a request, whose `input` has the name `field`, before it is tokenized. Raises
    RefusalError."""
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
    """The vectors of a plan, not yet in its type. Raises RefusalError."""
    encoded = await encode(request, model, plan.items, plan.options)
    vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
    return msgspec.structs.replace(encoded, values=vectors)


def _items(body: EmbeddingRequest, model: Model, limits: Limits, field: str) -> tuple[Items, str]:
    """The inputs, each text with its prompt before it, and the prompt."""
    items = input_items(body, field, model, limits)
    if "" in items.texts:
        field = items.name(items.texts.index(""))
        raise invalid(field, "must not be empty")
    named = body.prompt_name is not None or body.input_type is not None
    if body.messages is not None or (items.ids and not named):
        return items, ""
    prompt = text_prompt(model, body.prompt_name, body.input_type)
    if prompt and items.ids:
        field = "prompt_name" if body.prompt_name is not None else "input_type"
        raise invalid(field, "is only for texts; token ids are used as they are")
    texts = [prompt + text for text in items.texts]
    return msgspec.structs.replace(items, texts=texts), prompt


def text_prompt(model: Model, prompt_name: str | None, input_type: str | None) -> str:
    """The prompt of this name, or for this type of input, if the model has one, or else its
    default. Raises RefusalError for an unknown name or type, and for both at once."""
    if prompt_name is not None and input_type is not None:
        message = "prompt_name and input_type: give only one of them"
        raise RefusalError("invalid_request", message, "prompt_name")
    declared = model.served.execution.model.embedding
    if prompt_name is not None:
        return _named(model.name, declared.prompts, prompt_name)
    if input_type is not None:
        return _for_kind(declared.prompts, input_type)
    return declared.prompts.get(declared.default_prompt_name or "", "")


def _named(model: str, prompts: Mapping[str, str], name: str) -> str:
    if name in prompts:
        return prompts[name]
    known = f"has {', '.join(prompts)}" if prompts else "has no prompts"
    raise invalid("prompt_name", f"there is no prompt {quoted(name)}; model {model} {known}")


def _for_kind(prompts: Mapping[str, str], input_type: str) -> str:
    if input_type not in INPUT_TYPES:
        raise invalid("input_type", f"{quoted(input_type)} is not one of {', '.join(INPUT_TYPES)}")
    names = (input_type, *INPUT_TYPES[input_type])
    return next((prompts[name] for name in names if name in prompts), "")


def behind_prompt(tokenization: Tokenization, model: Model, prompt: str) -> Tokenization:
    """The tokenization of texts behind `prompt`, which the pooling may leave out. Raises
    RefusalError for cutting such texts on the left, where the prompt is."""
    if not prompt or model.served.execution.model.pooling.include_prompt:
        return tokenization
    if tokenization.truncate_to is not None and tokenization.truncation_side == "left":
        raise invalid(
            "truncation_side", f"model {model.name} does not pool its prompts, which stay whole"
        )
    special = tokenization.add_special_tokens
    (encoding,) = model.tokenizer.encodings([prompt], add_special_tokens=special)
    # The prompt's own, but for a special one at its end: sentence-transformers' rule.
    unpooled = len(encoding.ids) - sum(encoding.special_tokens_mask[-1:])
    return msgspec.structs.replace(tokenization, unpooled=unpooled)


def _input_limit(body: EmbeddingRequest, model_len: int) -> int | None:
    """The tokens to which an input is cut, None for not at all. Raises RefusalError."""
    field, limit = "truncate_prompt_tokens", body.truncate_prompt_tokens
    if limit is None:
        return model_len if body.truncation else None
    if body.truncation is False:
        raise invalid("truncation", f"is false, but {field} is given")
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
        raise invalid(field, f"vectors of model {model.name} have {own} numbers and cannot be cut")
    allowed = declared.matryoshka_dimensions
    if requested in allowed or (not allowed and requested < own):
        return requested
    known = ", ".join(map(str, sorted({*allowed, own}))) if allowed else f"1 to {own}"
    raise invalid(field, f"{requested} is not a size of model {model.name}'s vectors ({known})")


def _normalize(body: EmbeddingRequest, model: Model) -> bool:
    """Whether vectors get length 1: the request's choice, or that of the model's modules."""
    field, requested = name_and_value(
        ("normalize", body.normalize),
        ("use_activation", body.use_activation),
        ("normalized", body.normalized),
    )
    if requested is False and (dtype := _dtype(body)) in _DIRECTIONS:
        raise invalid(field, f"false is only for floats; {dtype} vectors keep only the direction")
    return model.served.execution.model.normalized if requested is None else requested


def _dtype(body: EmbeddingRequest) -> EmbedDtype:
    voyage: EmbedDtype | None = "float32" if body.output_dtype == "float" else body.output_dtype
    requested: EmbedDtype | None = value_under_any_name(
        ("embed_dtype", body.embed_dtype), ("output_dtype", voyage)
    )
    return requested or "float32"


def shorten(vectors: FloatArray, dimensions: int, *, normalize: bool) -> FloatArray:
    """float32[N, D] -> float32[N, dimensions]: the first numbers, as Matryoshka models permit
    (https://arxiv.org/abs/2205.13147), of length 1, but for zeros, if `normalize`."""
    short = vectors[:, :dimensions]
    if not normalize:
        return short
    # As torch.nn.functional.normalize, and so sentence-transformers, does it.
    # (np.linalg.norm takes twice as long for a single vector.)
    lengths = np.sqrt(np.einsum("nd,nd->n", short, short))
    return short / np.maximum(lengths, _MIN_LENGTH)[:, None]


def quantize(vectors: FloatArray, dtype: EmbedDtype) -> AnyArray:
    """float32[N, D] -> [N, D] of `dtype`, or [N, ceil(D / 8)] of packed bits.

    int8     round(127 x / max |x|) with each vector's own scale, which keeps its direction.
    ubinary  uint8: a bit for each number above 0, the first the most significant, padded with 0.
    binary   int8: ubinary less 128, as sentence-transformers, Cohere and Voyage have it.
    """
    match dtype:
        case "float32":
            return vectors
        case "float16":
            return np.clip(vectors, -_MAX_FLOAT16, _MAX_FLOAT16).astype(np.float16)
        case "int8":
            return _to_int8(vectors)
        case "ubinary":
            return np.packbits(vectors > 0, axis=1)
        case "binary":
            return (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).astype(np.int8)


def _to_int8(vectors: FloatArray) -> npt.NDArray[np.int8]:
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    return np.rint(scaled * _MAX_INT8).astype(np.int8)


async def rows_in_json(rows: Iterable[AnyArray], form: Callable[[AnyArray], bytes]) -> list[Raw]:
    """Each array in this form. Other requests run in between: large ones take a while."""
    encoded: list[Raw] = []
    numbers = 0
    for row in rows:
        encoded.append(Raw(form(row)))
        numbers += row.size
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    return encoded


def in_lists(row: AnyArray) -> bytes:
    """The numbers of an array as a list, or as lists. A float has as many digits as tell it from
    others of its type."""
    return orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY)


def in_base64(row: AnyArray) -> bytes:
    return b'"%b"' % base64.b64encode(row.tobytes())


def similarity(vectors: FloatArray, others: FloatArray, config: ModelConfig) -> FloatArray:
    """Pooled float32[N or 1, D], float32[N, D] -> float32[N]: the higher, the more alike. Distances
    are negative, as sentence-transformers has them."""
    kind = config.embedding.similarity
    if kind == "cosine":
        return cosine_similarity(vectors, others)
    first, second = (
        shorten(pooled, config.vector_size, normalize=config.normalized)
        for pooled in (vectors, others)
    )
    if kind == "dot":
        return (first * second).sum(axis=1)
    return -np.linalg.norm(first - second, ord=2 if kind == "euclidean" else 1, axis=1)


def cosine_similarity(vectors: FloatArray, others: FloatArray) -> FloatArray:
    """float32[N or 1, D], float32[N, D] -> float32[N] in [-1, 1], 0 for a vector of zeros."""
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(vectors, axis=1)
    products = (others * vectors).sum(axis=1)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return np.clip(cosines, -1.0, 1.0)
