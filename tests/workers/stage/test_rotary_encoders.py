"""Embedders with rotary positions, in the form of published checkpoints, from step messages to
vectors: against sentence-transformers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import modules as library

from tests.workers.contract.checkpoint.library_folders import saved, transformer, write_tokenizer
from tests.workers.models.encoders import ENCODERS
from tests.workers.stages import EncoderStages, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.checkpoint_config import read_model_config

TEXTS = ["water falls", "falls Water water falls water " * 8, "Water"]


def _dense(size: int, outputs: int) -> library.Dense:
    return library.Dense(size, outputs, bias=False, activation_function=torch.nn.Identity())


Modules = list[library.Pooling | library.Dense | library.Normalize]
MODULES: dict[str, Callable[[int], Modules]] = {
    "embedding_gemma": lambda size: [
        *(library.Pooling(size, "mean"), _dense(size, 4 * size), _dense(4 * size, size)),
        library.Normalize(),
    ],
    "modernbert": lambda size: [library.Pooling(size, "cls")],
    "nomicbert": lambda size: [library.Pooling(size, "mean"), library.Normalize()],
}
"""What is behind an encoder of `ENCODERS`, by its hidden size."""
PROMPTS = {
    "embedding_gemma": {"query": "task: search | query: ", "document": "title: none | text: "},
    "nomicbert": {"search_query": "water falls ", "search_document": "falls "},
}


@pytest.mark.parametrize("name", MODULES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    tiny, own, prompts = ENCODERS[name], tmp_path / "own", PROMPTS.get(name, {})
    tiny.save(own)
    write_tokenizer(own)
    modules = MODULES[name](tiny.config["hidden_size"])
    reference = saved(tmp_path, transformer(own), *modules, prompts=prompts)
    config = read_model_config(tmp_path)
    assert config.embedding.prompts.items() >= prompts.items()
    for prompt_name in (None, *prompts):
        prompt = prompts.get(prompt_name or "", "")
        ids = [reference.tokenizer(prompt + text)["input_ids"] for text in TEXTS]
        output = EncoderStages(tmp_path, task="embed", num_stages=2).run(encoder_step(ids))
        vectors = vectors_of(output, len(ids))
        if config.normalized:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = reference.encode(TEXTS, prompt_name=prompt_name)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
