"""Embedders with rotary positions, in the form of published checkpoints, from step messages to
vectors: against sentence-transformers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library

from tests.workers.contract.checkpoint.library_folders import saved, transformer, write_tokenizer
from tests.workers.models.encoders import ENCODERS
from tests.workers.stages import EncoderStages, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.checkpoint_config import read_model_config

TEXTS = ["water falls", "falls Water water falls water " * 8, "Water"]


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """An encoder of `ENCODERS`, the modules behind it, and prompts by name."""

    encoder: str
    modules: Callable[[int], list[library.Pooling | library.Dense | library.Normalize]]
    prompts: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> SentenceTransformer:
        tiny, own = ENCODERS[self.encoder], folder / "own"
        tiny.save(own)
        write_tokenizer(own)
        size = tiny.config["hidden_size"]
        modules = [transformer(own), *self.modules(size)]
        return saved(folder, *modules, prompts=self.prompts)


def _embedding_gemma(size: int) -> list[library.Pooling | library.Dense | library.Normalize]:
    plain = torch.nn.Identity()
    return [
        library.Pooling(size, "mean"),
        library.Dense(size, 4 * size, bias=False, activation_function=plain),
        library.Dense(4 * size, size, bias=False, activation_function=plain),
        library.Normalize(),
    ]


EMBEDDERS = {
    "embeddinggemma-300m": Embedder(
        encoder="embedding_gemma",
        modules=_embedding_gemma,
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    "gte-modernbert": Embedder(
        encoder="modernbert", modules=lambda size: [library.Pooling(size, "cls")]
    ),
    "nomic-embed-text": Embedder(
        encoder="nomicbert",
        modules=lambda size: [library.Pooling(size, "mean"), library.Normalize()],
        prompts={"search_query": "water falls ", "search_document": "falls "},
    ),
}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    reference = EMBEDDERS[name].save(tmp_path)
    config = read_model_config(tmp_path)
    assert config.embedding.prompts.items() >= EMBEDDERS[name].prompts.items()
    for prompt_name in (None, *EMBEDDERS[name].prompts):
        prompt = config.embedding.prompts.get(prompt_name or "", "")
        ids = [reference.tokenizer(prompt + text)["input_ids"] for text in TEXTS]
        output = EncoderStages(tmp_path, task="embed", num_stages=2).run(encoder_step(ids))
        vectors = vectors_of(output, len(ids))
        if config.normalized:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = reference.encode(TEXTS, prompt_name=prompt_name)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
