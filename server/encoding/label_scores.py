"""From a classifier's logits to scores."""

import numpy as np

from engine_core.client.pending_jobs import FloatArray
from workers.contract.model_config import ModelConfig


def label_scores(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: probabilities; but for a single label the logit, unless the
    checkpoint declares a sigmoid (as sentence-transformers' cross-encoders do)."""
    raw = config.num_labels == 1 and not config.sigmoid_scores
    return logits if raw else probabilities(logits, config)


def probabilities(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: a sigmoid for each label, or a softmax over several."""
    if config.num_labels == 1 or config.sigmoid_scores:
        return np.exp(-np.logaddexp(0, -logits))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
