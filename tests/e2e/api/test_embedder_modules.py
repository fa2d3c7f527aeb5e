"""An embedder in LaBSE's form (cls, Dense with tanh, Normalize), and with a prompt that it does not
pool, from its folder to `/v1/embeddings`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import modules as library

from tests.e2e.daemon import running
from tests.workers.checkpoints import save_bert
from tests.workers.contract.checkpoint.library_folders import saved, transformer, write_tokenizer

SIZE, SHORT = 64, 48
TEXTS = ["water falls", "falls Water water falls water", "Water"]


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.long), 2])
def test_vectors_are_those_of_the_library(tmp_path: Path, stages: int) -> None:
    own, folder = tmp_path / "own", tmp_path / "labse"
    save_bert(own)
    write_tokenizer(own)
    pooling = library.Pooling(SIZE, "cls", include_prompt=False)
    dense = library.Dense(SIZE, SHORT, activation_function=torch.nn.Tanh())
    modules = (transformer(own), pooling, dense, library.Normalize())
    reference = saved(folder, *modules, prompts={"query": "falls water "})
    with running(str(folder), "--threads", "1", "--pipeline-stages", str(stages)) as daemon:
        for name in (None, "query"):
            answer = daemon.ask("/v1/embeddings", input=TEXTS, prompt_name=name)
            vectors = np.array([entry["embedding"] for entry in answer["data"]])
            expected = reference.encode(TEXTS, prompt_name=name)
            assert vectors.shape == (len(TEXTS), SHORT)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
        states = daemon.ask("/embed_all", inputs=TEXTS)
        assert {len(state) for text in states for state in text} == {SIZE}
