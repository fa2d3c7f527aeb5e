"""Folders that sentence-transformers wrote, around a tiny model and a tokenizer of whole words."""

import json
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = ("water", "falls", "Water")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS) -> None:
    """Ids of `_SPECIAL`, then of `words`. A text begins with [CLS] and ends with [SEP]."""
    ids = {word: i for i, word in enumerate(_SPECIAL + words)}
    raw = RawTokenizer(WordLevel(ids, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    raw.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    named = {f"{name[1:-1].lower()}_token": name for name in _SPECIAL}
    PreTrainedTokenizerFast(tokenizer_object=raw, **named).save_pretrained(folder)


def transformer(folder: Path, **options: Any) -> library.Transformer:
    return library.Transformer(str(folder), **options)


def saved(folder: Path, *modules: torch.nn.Module, **options: Any) -> SentenceTransformer:
    """Modules as one model, which is written to `folder`."""
    model = SentenceTransformer(modules=list(modules), device="cpu", **options)
    model.save(str(folder), create_model_card=False)
    return model


def change(file: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    written = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(written | values))
