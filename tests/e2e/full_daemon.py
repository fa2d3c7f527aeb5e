"""Models for every endpoint: those of a daemon that clients and fuzzers are let loose on."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.workers.checkpoints import save_bert, save_masked_lm

CLIENTS_PYTHON = Path(__file__).parents[2] / ".venv-clients" / "bin" / "python"
KEY = "sesame-5f0c1e"
HEADERS = {"Authorization": f"Bearer {KEY}"}
CLASSIFIER_NAME = "moods"

PUBLISHED_NAMES = {
    GENERATOR_NAME: ["gpt-4o", "gpt-4o-mini", "gpt-3.5-turbo-instruct"],
    EMBEDDER_NAME: [
        "text-embedding-3-small", "text-embedding-ada-002", "voyage-3.5", "rerank-v3.5",
        "rerank-english-v3.0", "rerank-2.5",
    ],
}  # fmt: skip
"""The models that clients' own examples name."""


def write_models(folder: Path) -> dict[str, Path]:
    """Names, with commas -> folder: the demo models and a classifier."""
    models = demo_models() | {CLASSIFIER_NAME: write_classifier(folder / "moods")}
    return {",".join([name, *PUBLISHED_NAMES.get(name, [])]): path for name, path in models.items()}


def guarded_arguments(models: Mapping[str, Path]) -> list[str]:
    """The arguments of a daemon that serves such models to those who have the key."""
    names = [word for name in models for word in ("--served-model-name", name)]
    return [*map(str, models.values()), *names, "--api-key", KEY, "--threads", "1"]


def write_classifier(folder: Path) -> Path:
    """Three labels at random, and the demo embedder's tokenizer."""
    labels = {0: "calm", 1: "glad", 2: "sad"}
    save_bert(folder, labels=3, id2label=labels, vocab_size=_vocabulary(), num_hidden_layers=1)
    return with_tokenizer(folder)


def write_sparse_embedder(folder: Path) -> Path:
    """Random weights, and the demo embedder's tokenizer."""
    save_masked_lm(folder, bias=-2.0, vocab_size=_vocabulary(), num_hidden_layers=1)
    return with_tokenizer(folder)


def _vocabulary() -> int:
    config = demo_models()[EMBEDDER_NAME] / "config.json"
    return json.loads(config.read_text())["vocab_size"]


def with_tokenizer(folder: Path) -> Path:
    """The folder, with the demo embedder's tokenizer in it."""
    for file in demo_models()[EMBEDDER_NAME].glob("*token*.json"):
        shutil.copy(file, folder)
    return folder
