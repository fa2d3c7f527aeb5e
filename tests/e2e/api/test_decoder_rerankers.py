"""A daemon with a generator that reranks gives its model card's scores."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.e2e.daemon import running
from tests.workers.heads.reranking_qwen3 import (
    DOCUMENTS,
    INSTRUCTION,
    QUERY,
    card_scores,
    save_reranking_qwen3,
)


def test_a_daemon_gives_the_scores_of_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.1B"
    reference = save_reranking_qwen3(folder)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    body = {"query": QUERY, "documents": DOCUMENTS}
    with (
        running(str(folder), "--task", "rerank", "--threads", "1") as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
    ):
        for instruction in (INSTRUCTION, "Find what is heavy."):
            expected = card_scores(*reference, pairs, instruction=instruction)
            asked = {} if instruction == INSTRUCTION else {"instruction": instruction}
            results = http.post("/v1/rerank", json=body | asked).json()["results"]
            found = {result["index"]: result["relevance_score"] for result in results}
            assert [found[i] for i in range(len(pairs))] == pytest.approx(expected, abs=1e-5)
            assert [result["index"] for result in results] == np.argsort(-expected).tolist()
            texts = {"text_1": QUERY, "text_2": DOCUMENTS}
            data = http.post("/v1/score", json=texts | asked).json()["data"]
            assert [each["score"] for each in data] == pytest.approx(expected, abs=1e-5)
        short = body | {"documents": DOCUMENTS[-1:], "max_tokens_per_doc": 3}
        cut = http.post("/v1/rerank", json=short).json()
        assert cut["meta"]["warnings"] == ["documents[0] was cut to fit"]
        refused = http.post("/v1/classify", json={"input": "a"})
        assert refused.json()["error"]["code"] == "wrong_endpoint"
