"""Folders of models with dummy weights: a shape, and a tokenizer for texts over HTTP."""

from pathlib import Path

import msgspec
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from server.bench.words import python_sources
from server.bench.workloads import HTTPCase, HTTPGenerationCase, Shape
from server.demo import EMBEDDER_NAME, demo_models
from workers.contract.checkpoint.folder_files import read_json

_SHAPES = Path(__file__).parent / "shapes"
_TOKENIZER_FILE = "tokenizer.json"
_VOCABULARY_SIZE = 32_768
_BOS_ID, _EOS_ID = 0, 1
_SPECIAL = ["<s>", "</s>"]


def shape_folder(shape: Shape) -> Path:
    """Where the `config.json` of a shape is."""
    return _SHAPES / shape


def shape_names() -> list[str]:
    """The shapes that come with the benchmarks."""
    return sorted(folder.name for folder in _SHAPES.iterdir() if folder.is_dir())


def parse_shape(text: str) -> Path:
    """The folder of a shape, by its name, or any other folder."""
    return _SHAPES / text if text in shape_names() else Path(text)


def tokenizer_for(case: HTTPCase, file: Path | None) -> Tokenizer:
    """The tokenizer in `file`, or the default one: `byte_level_bpe` for a generator, the demo
    embedder's for an embedder. Raises TokenizerError or DemoModelMissingError."""
    if file is not None:
        if file.name != _TOKENIZER_FILE:
            raise TokenizerError(f"{file} is not called {_TOKENIZER_FILE}")
        return Tokenizer.load(file.parent)
    if isinstance(case, HTTPGenerationCase):
        return Tokenizer(byte_level_bpe())
    return Tokenizer.load(demo_models()[EMBEDDER_NAME])


def write_model(folder: Path, shape: Path, tokenizer: Tokenizer) -> None:
    """Make a model of `shape` with the vocabulary of `tokenizer` in a new `folder`. Raises
    ModelConfigError."""
    config = read_json(shape, "config.json")
    config["vocab_size"] = tokenizer.raw.get_vocab_size()
    if "bos_token_id" in config:
        config |= {"bos_token_id": _BOS_ID, "eos_token_id": _EOS_ID}
    folder.mkdir()
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    tokenizer.raw.save(str(folder / _TOKENIZER_FILE))


def byte_level_bpe() -> RawTokenizer:
    """Train a byte-level BPE of exactly 32,768 entries on Python's own library (2 s): the
    same everywhere for one Python. It adds no special tokens."""
    tokenizer = RawTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(python_sources(), trainer)
    # A library with few sources has too few merges.
    missing = _VOCABULARY_SIZE - tokenizer.get_vocab_size()
    unused = [AddedToken(f"<unused{index}>") for index in range(missing)]
    tokenizer.add_tokens(unused)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer
