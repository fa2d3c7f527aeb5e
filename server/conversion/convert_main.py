# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false
"""The program that converts a slow tokenizer, `python -P -m server.conversion.convert_main FOLDER
TARGET`: the one place that imports transformers. `slow_tokenizer.py` starts it.

transformers builds the fast form from the checkpoint's files. What is written is then compared, on
odd texts, with an implementation that shares no code with it: the WordPiece that BERT came with,
the library sentencepiece, or BPE over bytes as it is published. transformers' types are incomplete,
and sentencepiece has none.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import convert_slow_tokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from engine_core.tokenization.growth import check_growth
from server.conversion.byte_pairs import GPT2_WORDS, BytePairs
from server.conversion.odd_texts import odd_texts
from workers.contract.checkpoint.folder_files import optional

Reference = Callable[[str], list[str]]
"""A text without special tokens -> the vocabulary's own spelling of its tokens."""


_LLAMA = "LlamaTokenizer"


class ConversionError(ValueError):
    """A tokenizer cannot be converted, or would not be the same; one line says why."""


def main() -> int:
    """Write the tokenizer.json of a checkpoint's folder; one line on the standard output if it
    cannot be."""
    folder, target = map(Path, sys.argv[1:])
    try:
        convert(folder, target)
    except Exception as error:  # whatever a library raises for files that it does not like
        print((str(error).strip() or type(error).__name__).splitlines()[0])
        return 1
    return 0


def convert(folder: Path, target: Path) -> None:
    """Convert the tokenizer in `folder` into the file `target`. Raises ConversionError,
    or GrowthError."""
    original: Any = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    fast: Any = getattr(original, "backend_tokenizer", None)
    fast = fast or convert_slow_tokenizer(original)
    if type(original).__name__ == _LLAMA:
        _as_llama(original, fast, folder)
    fast.save(str(target))
    check_growth(target.read_bytes())
    special = [str(token) for token in original.all_special_tokens]
    _compare(Tokenizer.from_file(str(target)), original, _reference(folder, original), special)


def _as_llama(original: Any, fast: Any, folder: Path) -> None:
    """Let the fast form of Llama's tokenizer put a space before each text between special tokens,
    as sentencepiece does and as published files do; that of transformers 5 puts none before a text
    that begins with a space. What the settings do not say is as it was in transformers 4, of whose
    time such files are. Raises ConversionError if only the first text is to have a space."""
    settings = optional(folder, "tokenizer_config.json", dict[str, Any]) or {}
    if settings.get("legacy") is False:
        raise ConversionError(f"a {_LLAMA} whose settings say legacy: false has no exact fast form")
    original.add_bos_token = settings.get("add_bos_token", True)
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    fast.pre_tokenizer = None


def _compare(converted: Tokenizer, original: Any, reference: Reference, special: list[str]) -> None:
    """Raises ConversionError if `converted` reads an odd text otherwise than `original`, or than
    `reference`, which does not know special tokens."""
    converted.no_truncation()
    converted.no_padding()
    for text in odd_texts(special):
        # Not the encoding's own tokens: of a text that the vocabulary lacks, these are the text.
        ids = converted.encode(text, add_special_tokens=False).ids
        tokens = [converted.id_to_token(token) for token in ids]
        named = [token for token in special if token in text]
        if named and type(original).__name__ == _LLAMA:
            same = tokens == _between(special, reference, text)
        else:
            same = set(named) <= set(tokens) if named else tokens == reference(text)
        if not same or converted.encode(text).ids != original(text)["input_ids"]:
            raise ConversionError(f"it reads {text[:40]!r} otherwise once it is converted")


def _between(special: list[str], reference: Reference, text: str) -> list[str]:
    """The tokens of `text` where the texts between special tokens are read alone."""
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text)
    read = [[part] if part in special else reference(part) for part in parts if part]
    return [token for tokens in read for token in tokens]


def _reference(folder: Path, original: Any) -> Reference:
    """The implementation for the kind of files in `folder`. Raises ConversionError."""
    if not hasattr(original, "backend_tokenizer"):
        return lambda text: original.convert_ids_to_tokens(
            original.encode(text, add_special_tokens=False)
        )
    if models := sorted(folder.glob("*.model")):
        return _sentencepiece(models[0])
    if (folder / "vocab.txt").exists():
        return _wordpiece(folder / "vocab.txt", original)
    if (folder / "merges.txt").exists():
        return _byte_pairs(folder / "merges.txt", original)
    raise ConversionError(f"there is nothing to compare a {type(original).__name__} with")


def _sentencepiece(file: Path) -> Reference:
    from sentencepiece import SentencePieceProcessor  # noqa: PLC0415  (for such files alone)

    processor: Any = SentencePieceProcessor(model_file=str(file))
    return lambda text: [processor.id_to_piece(piece) for piece in processor.encode(text)]


def _wordpiece(file: Path, original: Any) -> Reference:
    keys = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    options: dict[str, Any] = {
        key: value for key in keys if (value := original.init_kwargs.get(key)) is not None
    }
    options |= {name: str(token) for name, token in original.special_tokens_map.items()}
    legacy: Any = BertTokenizerLegacy(str(file), **options)
    return legacy.tokenize


def _byte_pairs(merges: Path, original: Any) -> Reference:
    match type(original).__name__:
        case "GPT2Tokenizer" | "RobertaTokenizer" if not original.init_kwargs.get(
            "add_prefix_space"
        ):
            return BytePairs(merges, GPT2_WORDS).tokens
        case "Qwen2Tokenizer":
            return BytePairs(merges, PRETOKENIZE_REGEX, "NFC").tokens
        case kind:
            raise ConversionError(f"there is nothing to compare a {kind} of its settings with")


if __name__ == "__main__":
    sys.exit(main())
