"""How alike two vectors are, in the way that their model's checkpoint names."""

import numpy as np

from engine_core.client.pending_jobs import FloatArray
from server.encoding.vectors import shorten
from workers.contract.model_config import ModelConfig


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
