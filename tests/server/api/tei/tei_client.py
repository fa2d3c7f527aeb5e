"""A client of TEI's endpoints. Their shapes and errors are those of
huggingface/text-embeddings-inference 1.7 (router/src/http)."""

from typing import Any

import numpy as np

BODIES: dict[str, dict[str, Any]] = {
    **{path: {"inputs": "a"} for path in ("/embed", "/embed_all", "/embed_sparse", "/predict")},
    "/rerank": {"query": "a", "texts": ["b"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
}


def failure(deployment, path: str, fields: dict) -> tuple[int, str, str]:
    response = deployment.post(path, fields)
    body = response.json()
    assert set(body) == {"error", "error_type"}
    return response.status_code, body["error_type"], body["error"]


def expit(number: float) -> float:
    return 1 / (1 + float(np.exp(-number)))
