"""Outputs of each text's tokens: vectors, lexical weights, labels."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from starlette.requests import Request

from engine_core.client.pending_jobs import Encoded, FloatArray, OfTokens
from engine_core.messages import JobOptions, Output
from server.api.encode import encode
from server.service.inputs import Items
from server.service.service import Model
from workers.contract.model_config import ModelConfig


def of_each_text(
    encoded: Encoded, outputs: Sequence[Output], config: ModelConfig
) -> Iterator[list[FloatArray]]:
    """The outputs of each text: a vector float32[D], what tokens have float32[tokens, size]."""
    for tokens, numbers in zip(encoded.prompt_tokens, encoded.rows, strict=True):
        shapes = [
            (config.vector_size,) if name == "vector" else (tokens, config.token_size(name))
            for name in outputs
        ]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        parts = np.split(numbers.ravel(), ends[:-1])
        yield [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


async def token_vectors(
    request: Request, model: Model, items: Items, options: JobOptions, *, query: bool
) -> tuple[list[FloatArray], Encoded]:
    """The vectors of each text's tokens, not normalised, and the engine's answer. A model with late
    interaction gets its markers, and leaves out what it skips; one with a vector of the whole text
    leaves out that of the first token, as BGE-M3 does. Raises RefusalError."""
    outputs: tuple[Output, ...] = ("token_vectors",)
    if (late := model.late_interaction) is None:
        encoded = await encode(request, model, items, options, of_tokens=OfTokens(outputs))
        return [vectors[1:] for vectors in encoded.rows], encoded
    if query:
        options = replace(options, tokenization=late.query_cut(options.tokenization))
    marks = late.marks(query=query)
    encoded = await encode(request, model, items, options, of_tokens=OfTokens(outputs, marks))
    rows = zip(encoded.rows, encoded.prompt_ids, strict=True)
    return [late.kept(vectors, ids, query=query) for vectors, ids in rows], encoded


def lexical_weights(weights: FloatArray, ids: bytes, special: frozenset[int]) -> dict[str, float]:
    """The largest weight of each token of a text, float32[tokens, 1], by its id: of those above 0
    that are not special (Chen et al. 2024, arXiv:2402.03216, 3.2; names as in FlagEmbedding)."""
    largest: dict[str, float] = {}
    tokens = np.frombuffer(ids, np.int32).tolist()
    for token, weight in zip(tokens, weights[:, 0].tolist(), strict=True):
        if weight > 0 and token not in special:
            largest[str(token)] = max(weight, largest.get(str(token), 0.0))
    return largest
