"""Vectors in the form that a request selects: shorter, of length 1, of another type."""

from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.client.pending_jobs import FloatArray
from server.schemas.embeddings import EmbedDtype

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
