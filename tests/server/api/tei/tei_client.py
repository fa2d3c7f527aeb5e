"""A client of TEI's endpoints. Their shapes and errors are those of
huggingface/text-embeddings-inference 1.7 (router/src/http)."""

from typing import Literal

import numpy as np

from engine_core.messages import Tokenization
from tests.server.fake_engine import FakeEngine


def failure(deployment, path: str, fields: dict) -> tuple[int, str, str]:
    response = deployment.post(path, fields)
    body = response.json()
    assert set(body) == {"error", "error_type"}
    return response.status_code, body["error_type"], body["error"]


def expit(number: float) -> float:
    return 1 / (1 + float(np.exp(-number)))


def assert_cut_then_whole(engine: FakeEngine, side: Literal["left", "right"]) -> None:
    cut, whole = engine.received
    assert cut.tokenization == Tokenization(truncate_to=2048, truncation_side=side)
    assert whole.tokenization.truncate_to is None
