"""Vectors in the form that a request selects: shorter, of length 1, of another type."""

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from engine_core.client.pending_jobs import FloatArray
from server.schemas.embeddings import EmbedDtype
from workers.contract.model_config import ModelConfig

AnyArray = npt.NDArray[Any]

_MIN_LENGTH = np.float32(1e-12)
_MAX_FLOAT16 = 65_504.0
_MAX_INT8 = 127


def shorten(vectors: FloatArray, dimensions: int, *, normalize: bool) -> FloatArray:
    """float32[N, D] -> float32[N, dimensions]: the first ones of a matryoshka model's vectors
    (https://arxiv.org/abs/2205.13147), or all; of length 1 if `normalize`, but for zeros."""
    short = vectors[:, :dimensions]
    if not normalize:
        return short
    # As torch.nn.functional.normalize, and so sentence-transformers, does it.
    # (np.linalg.norm takes twice as long for a single vector.)
    lengths = np.sqrt(np.einsum("nd,nd->n", short, short))
    return short / np.maximum(lengths, _MIN_LENGTH)[:, None]


def quantize(vectors: FloatArray, dtype: EmbedDtype) -> AnyArray:
    """float32[N, D] -> [N, D] of `dtype`, or [N, ceil(D / 8)] of packed bits.

    int8     round(127 x / max |x|), each vector with its own scale: no calibration, the same in any
             batch, and of the same direction
    ubinary  uint8: a bit for each number, 1 where it is above 0, the first the most significant;
             zeros fill the last byte
    binary   int8: ubinary less 128 (as sentence-transformers, Cohere and Voyage have it)
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


_NUMBERS_AT_ONCE = 1 << 15


def in_lists(row: AnyArray) -> object:
    """Its numbers as a list, or as lists."""
    return row.tolist()


def in_base64(row: AnyArray) -> object:
    """The bytes of its numbers."""
    return base64.b64encode(row.tobytes()).decode()


async def rows_in_json(rows: Iterable[AnyArray], form: Callable[[AnyArray], object]) -> list[Raw]:
    """Each array in this form. Other requests run in between: a large answer takes a while to
    encode."""
    encoded: list[Raw] = []
    numbers = 0
    for row in rows:
        encoded.append(Raw(msgspec.json.encode(form(row))))
        numbers += row.size
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    return encoded


def similarity(vectors: FloatArray, others: FloatArray, config: ModelConfig) -> FloatArray:
    """Pooled vectors float32[N, D] (or one for all, [1, D]) and float32[N, D] -> float32[N], the
    higher the more alike: distances are negative, as sentence-transformers has them."""
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
    """float32[N, D] (or one for all, [1, D]), float32[N, D] -> float32[N] in [-1, 1]; 0 where a
    vector has no length."""
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(vectors, axis=1)
    products = (others * vectors).sum(axis=1)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return np.clip(cosines, -1.0, 1.0)
