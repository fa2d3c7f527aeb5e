"""Folders that sentence-transformers wrote, around a tiny model and a tokenizer of whole words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = ("water", "falls", "Water")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS) -> None:
    """Ids of `_SPECIAL`, then of `words`. A text begins with [CLS] and ends with [SEP]."""
    named = {f"{name[1:-1].lower()}_token": name for name in _SPECIAL}
    write_word_tokenizer(folder, [*_SPECIAL, *words], "[CLS] $A [SEP]", named)


def write_word_tokenizer(
    folder: Path, words: Sequence[str], template: str, named: dict[str, str]
) -> None:
    """Words at spaces, in a template of one text; a second one follows it at once."""
    ids = {word: i for i, word in enumerate(words)}
    raw = RawTokenizer(WordLevel(ids, unk_token=named["unk_token"]))
    raw.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    raw.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=template,
        pair=template.replace("$A", "$A $B"),
        special_tokens=[(name, ids[name]) for name in named.values() if name in template],
    )
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
