"""Folders of models whose weights are made up: a shape, and a tokenizer to speak with over HTTP."""

from pathlib import Path

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from server.bench.bpe import BOS_ID, EOS_ID, byte_level_bpe
from server.bench.cases import HTTPCase, HTTPGenerationCase, Shape
from server.demo import EMBEDDER_NAME, demo_models
from workers.contract.model_config import read_json

_SHAPES = Path(__file__).parent / "shapes"
_TOKENIZER_FILE = "tokenizer.json"


def shape_folder(shape: Shape) -> Path:
    """Where the `config.json` of a shape is."""
    return _SHAPES / shape


def tokenizer_for(case: HTTPCase, file: Path | None) -> Tokenizer:
    """The tokenizer in `file`; without one, for a generator a byte-level BPE of 32,768 entries, for
    an embedder the demo embedder's (BERT's word pieces).

    Raises TokenizerError or DemoModelMissingError.
    """
    if file is not None:
        if file.name != _TOKENIZER_FILE:
            raise TokenizerError(f"{file} is not called {_TOKENIZER_FILE}")
        return Tokenizer.load(file.parent)
    if isinstance(case, HTTPGenerationCase):
        return Tokenizer(byte_level_bpe())
    return Tokenizer.load(demo_models()[EMBEDDER_NAME])


def write_model(folder: Path, shape: Path, tokenizer: Tokenizer) -> None:
    """A model of `shape` (a folder) with the vocabulary of `tokenizer`, in a new `folder`.

    Raises ModelConfigError if the shape has no readable `config.json`.
    """
    config = read_json(shape / "config.json")
    config["vocab_size"] = tokenizer.raw.get_vocab_size()
    if "bos_token_id" in config:
        config |= {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    folder.mkdir()
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    tokenizer.raw.save(str(folder / _TOKENIZER_FILE))
