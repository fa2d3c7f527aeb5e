# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false
"""The program that converts a slow tokenizer, `python -P -m server.models.convert_main FOLDER
TARGET`: the one place that imports transformers. `slow_tokenizer.py` starts it.

transformers builds the fast form from the checkpoint's files. The result is then compared, on odd
texts, with another implementation: BERT's own WordPiece, the library sentencepiece, or byte-level
BPE put together as published. transformers' types are incomplete, and sentencepiece has none.
"""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import convert_slow_tokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from engine_core.tokenization.growth import check_growth
from workers.contract.checkpoint.folder_files import optional

Reference = Callable[[str], list[str]]
"""A text without special tokens -> the vocabulary's own spelling of its tokens."""


_LLAMA = "LlamaTokenizer"


class ConversionError(ValueError):
    """A tokenizer cannot be converted, or would not be the same. One line says why."""


def main() -> None:
    """Write the tokenizer.json of a checkpoint's folder. One line on standard error if it cannot
    be."""
    folder, target = map(Path, sys.argv[1:])
    try:
        convert(folder, target)
    except Exception as error:  # whatever a library raises for files that it does not like
        sys.exit((str(error).strip() or type(error).__name__).splitlines()[0])


def convert(folder: Path, target: Path) -> None:
    """Convert the tokenizer in `folder` into the file `target`. Raises ConversionError,
    or ValueError."""
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
    """Let the fast form of Llama's tokenizer put a space before each text between special tokens.

    Sentencepiece and published files do; transformers 5 puts none before a text that begins with a
    space. Defaults are those of transformers 4. Raises ConversionError if only the first text is to
    have a space.
    """
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
        return _byte_level(folder, original)
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


def _byte_level(folder: Path, original: Any) -> Reference:
    """Byte-level BPE as published: of the words of a pattern, in a form of Unicode."""
    published = {
        "GPT2Tokenizer": (ByteLevel(add_prefix_space=False), None),
        "RobertaTokenizer": (ByteLevel(add_prefix_space=False), None),
        "Qwen2Tokenizer": (
            pre_tokenizers.Sequence(
                [
                    Split(Regex(PRETOKENIZE_REGEX), "isolated"),
                    ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            normalizers.NFC(),
        ),
    }
    kind = type(original).__name__
    if kind not in published or original.init_kwargs.get("add_prefix_space"):
        raise ConversionError(f"there is nothing to compare a {kind} of its settings with")
    plain: Any = Tokenizer(BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    plain.pre_tokenizer, plain.normalizer = published[kind]
    return lambda text: plain.encode(text).tokens


NUM_TEXTS = 200
_SPECIAL_TOKENS = 8
"""The most whose texts are among them."""
_EVERY = 5
"""One in so many of the pairs: some with each white space."""

_SCRIPTS = (
    "The quick brown fox jumps over the lazy dog's back.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva.",
    "Größe, Straße, ÄÖÜ, GROẞ",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "いろはにほへと ちりぬるを、カタカナ。",
    "我能吞下玻璃而不伤身体。漢字",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ",
    "דג סקרן שט בים מאוכזב",
    "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "Tiếng Việt có dấu: ế ộ ữ",
    "İstanbul ılık ışık I i",
)
_MARKS = (
    "👍", "👩‍👩‍👧‍👦", "🇨🇭🇯🇵", "☕️ ❤️ ✔", "é e\u0301 \u0301", "ﬁ ﬂ ½ ² Ⅷ ㍿ ＡＢＣ", "…—–“”‘’«»",
    "$1,234.56 €99 £5 ¥7 ₹3", "a_b-c+d=e*f/g\\h|i", "{}[]()<>@#%^&~`", "don't I'll we've THEY'RE",
    "https://a.example/b?c=d&e=%20#f", "user@example.org", "def f(x):\n\treturn x**2  # no",
    "0", "12345678901234567890", "3.14e-10", "x" * 150, "ab " * 100, "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈 𠜎",
    "CamelCaseANDacronyms", "##ing ## #", "▁a ▁▁ Ġb Ċ",
)  # fmt: skip
_SPACES = (
    "", " ", "   ", "\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003\u2009", "\u200b",
    "\u200d", "\ufeff", "\u00ad", "\u2028", "\x00", "\x07\x1b", "\x7f", "\u2060", "\ufffd",
)  # fmt: skip


def odd_texts(special_tokens: Sequence[str]) -> list[str]:
    """`NUM_TEXTS` texts, always the same: white space, scripts, marks, special tokens, and pairs.

    U+0085 is left out: sentencepiece takes it for a letter, and published fast forms of its models
    take it for white space.
    """
    words = (*_SCRIPTS, *_MARKS)
    pairs = [
        f"{space}{first}{space}{second}{space}"
        for space in _SPACES
        for first, second in pairwise(words)
    ]
    special = chain.from_iterable(map(_with, special_tokens[:_SPECIAL_TOKENS]))
    return list(islice(chain(_SPACES, words, special, pairs[::_EVERY]), NUM_TEXTS))


def _with(token: str) -> tuple[str, ...]:
    return token, f"a {token} b", f"a{token}b", f" {token}", token * 2, token.swapcase()


if __name__ == "__main__":
    main()
