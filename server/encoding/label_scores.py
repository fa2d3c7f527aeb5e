"""From a classifier's logits to scores."""

import numpy as np

from engine_core.client.pending_jobs import FloatArray
from workers.contract.model_config import ModelConfig


def label_scores(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: probabilities, but of one label whatever its checkpoint says
    (sentence-transformers' cross-encoders)."""
    raw = config.num_labels == 1 and not config.sigmoid_scores
    return logits if raw else probabilities(logits, config)


def probabilities(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: of each label by itself, or of one among several."""
    if config.num_labels == 1 or config.sigmoid_scores:
        return np.exp(-np.logaddexp(0, -logits))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
