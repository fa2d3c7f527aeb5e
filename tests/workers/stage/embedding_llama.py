"""A tiny Llama that embeds, in the files that Qwen3-Embedding's publishers have."""

import json
import random
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library

from tests.workers.checkpoints import save_llama
from tests.workers.contract.checkpoint.library_folders import write_word_tokenizer

WORDS = [f"w{number}" for number in range(200)]
PROMPTS = {"query": "w1 w2 w3 ", "document": ""}
_NAMED = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}


def write_tokenizer(folder: Path) -> None:
    """Words at spaces, and an end token after each text."""
    write_word_tokenizer(folder, [*WORDS, *_NAMED.values()], "$A <end>", _NAMED)


def save_embedding_llama(folder: Path, **changes: Any) -> SentenceTransformer:
    """Write the model with its modules, and return it as sentence-transformers has it. Its
    config.json names a head without weights, and names of weights have no prefix."""
    bare = folder / "bare"
    save_llama(bare, **changes)
    write_tokenizer(bare)
    transformer = library.Transformer(str(bare))
    size = transformer.get_embedding_dimension()
    modules = [transformer, library.Pooling(size, pooling_mode="lasttoken"), library.Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    model.save(str(folder), create_model_card=False)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaModel"]
    config["architectures"] = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    return model


def random_texts(count: int, longest: int, seed: int = 3) -> list[str]:
    """Texts of 1 to `longest` words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
