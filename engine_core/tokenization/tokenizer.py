"""A model's tokenizer, read from `tokenizer.json` without transformers (and so without torch)."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine_core.refusal import RefusalError
from engine_core.tokenization.growth import check_growth
from engine_core.tokenization.known_words import KnownWords
from engine_core.tokenization.pipeline_rules import continuing, longest_token
from engine_core.tokenization.tokenizer_settings import TokenizerSettings
from workers.contract.checkpoint.config_keys import Refuse, stop
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, find_file, read_bytes
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig, ModelConfigError

TOKENIZER_FILE = "tokenizer.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNKNOWN = REPLACEMENT.encode()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(_OTHERS)
}
"""The byte behind each character of a byte-level vocabulary (GPT-2). Printable bytes are
themselves, the others are, in order, the characters from 256 on."""


class TokenizerError(ValueError):
    """A tokenizer is missing or unreadable. One line says which file."""


class Tokenizer:
    """Text to ids and back. Ids travel as int32 bytes.

    `encode_batch_fast` encodes: plain `encode` holds the interpreter's lock as long as it runs.
    """

    def __init__(self, raw: RawTokenizer, growth: float = 1) -> None:
        """`growth` is how many times longer its rules may make a text (see `check_growth`)."""
        raw.no_truncation()
        raw.no_padding()
        self.raw = raw
        self.growth = growth

    @classmethod
    def load(cls, folder: Path, name: str = TOKENIZER_FILE) -> "Tokenizer":
        """The tokenizer in a folder's file. Raises TokenizerError if it cannot be read."""
        try:
            data = read_bytes(folder, name, TOKENIZER_BYTES)
            growth = check_growth(data)
            return cls(RawTokenizer.from_buffer(data), growth)
        except ModelConfigError as error:
            raise TokenizerError(str(error)) from None
        except BaseException as error:  # a plain Exception for any bad file, or a panic
            raise TokenizerError(f"{folder / name} cannot be read: {as_exception(error)}") from None

    @classmethod
    def for_model(
        cls, model: ModelConfig, load_format: LoadFormat, refuse: Refuse = stop
    ) -> "Tokenizer":
        """The tokenizer beside a checkpoint's weights, with the settings in the files beside it.

        Random weights need none: a text is then a list of words like `<17>`, one an id. Raises
        TokenizerError. Settings that are not obeyed go to `refuse`.
        """
        file = Path(model.tokenizer_file or Path(model.path) / TOKENIZER_FILE)
        try:
            if load_format == "dummy" and not find_file(file.parent, file.name):
                return cls(_numbered_words(model.vocab_size))
            tokenizer = cls.load(file.parent, file.name)
            TokenizerSettings(Path(model.path), refuse).put_into(tokenizer.raw)
        except ModelConfigError as error:
            raise TokenizerError(str(error)) from None
        if model.lowercase:
            first, own = Lowercase(), tokenizer.raw.normalizer
            tokenizer.raw.normalizer = first if own is None else Normalizers([first, own])
        return tokenizer

    def encodings(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        add_special_tokens: bool = True,
        offsets: bool = False,
        continues: bool = False,
    ) -> list[Encoding]:
        """Tokenize texts, or pairs, in one call. With `offsets` it is known where their tokens are.
        With `continues` each is taken for what follows another text.

        Raises RefusalError for a text at which the library panics, as its expressions have limits.
        """
        raw = self.continuation if continues else self.raw
        encode = raw.encode_batch if offsets else raw.encode_batch_fast
        try:
            return encode(texts, add_special_tokens=add_special_tokens)
        except BaseException as error:
            raise not_tokenized(error) from None

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[bytes]:
        """The ids of each text, int32 bytes. Raises RefusalError, as `encodings` does."""
        encodings = self.encodings(texts, add_special_tokens=add_special_tokens)
        return [np.array(encoding.ids, np.int32).tobytes() for encoding in encodings]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`, with U+FFFD for bytes that are not UTF-8. Raises an Exception."""
        text = _decoded(self.raw, ids, skip_special_tokens=skip_special_tokens)
        if REPLACEMENT not in text:
            return text
        data = self.token_bytes.joined(ids, skip_special_tokens=skip_special_tokens)
        return data.decode(errors="replace")

    @cached_property
    def known_words(self) -> KnownWords | None:
        return KnownWords.of(self)

    @cached_property
    def token_bytes(self) -> "TokenBytes":
        return TokenBytes(self.raw)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of a text's tokens, known without tokenizing. It is 0 where the tokenizer
        might drop parts of the text."""
        return -(-len(text.encode()) // self._longest) if self._longest else 0

    @cached_property
    def continuation(self) -> RawTokenizer:
        """Tokenizes what continues a text, unless it has one of `starting_ids`."""
        return continuing(self.raw)

    @cached_property
    def continuing(self) -> "Tokenizer":
        """A tokenizer for texts that continue others, by `continuation`."""
        other = self.continuation
        return self if other is self.raw else Tokenizer(other, self.growth)

    @cached_property
    def starting_ids(self) -> frozenset[int]:
        """The ids of tokens behind which a text is tokenized like one that begins there. There are
        none where the tokenizer puts nothing before texts."""
        other = self.continuation
        return frozenset(() if other is self.raw else other.get_added_tokens_decoder())

    @cached_property
    def _longest(self) -> int | None:
        return longest_token(self.raw)


class TokenBytes:
    """The UTF-8 of single tokens inside a text. None for a part of a character that is not known.

    Texts are put together from these wherever bytes are no UTF-8: a decoder of the library that
    falls back to bytes replaces a whole run of them if one is wrong.
    """

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self._known: dict[int, bytes | None] = {}
        # Decoders drop the space before the first token; this one is put before every other, and
        # behind it, because some decoders drop the space behind the last.
        self._anchor = raw.encode("a", add_special_tokens=False).ids[-1:]
        self._before = _decoded(raw, self._anchor)
        self._behind = _decoded(raw, self._anchor * 2).removeprefix(self._before)
        added = raw.get_added_tokens_decoder()
        self.special = frozenset(token for token in added if added[token].special)

    def __getitem__(self, token: int) -> bytes | None:
        if token not in self._known:
            text = _decoded(self._raw, [*self._anchor, token, *self._anchor])
            text = text.removeprefix(self._before).removesuffix(self._behind)
            self._known[token] = self._spelled(token, text)
        return self._known[token]

    def entry(self, token: int) -> str:
        """The vocabulary's own spelling of a token. Empty for an id without one."""
        return self._raw.id_to_token(token) or ""

    def first(self, token: int) -> bytes | None:
        """The UTF-8 of a token that a text begins with."""
        return self._spelled(token, _decoded(self._raw, [token]))

    def joined(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        text = TextBytes(self, skip_special_tokens=skip_special_tokens)
        return b"".join(map(text.next, ids))

    def _spelled(self, token: int, text: str) -> bytes | None:
        """The bytes of a token whose `text` may have replacements for them."""
        entry = self.entry(token)
        # No alphabet of bytes has U+FFFD itself: an entry with it is text.
        if REPLACEMENT not in text or REPLACEMENT in entry:
            return text.encode()
        if byte := _BYTE_TOKEN.fullmatch(entry):
            return bytes([int(byte[1], 16)])
        if all(char in _BYTE_OF for char in entry):
            return bytes(_BYTE_OF[char] for char in entry)
        return None


class TextBytes:
    """The bytes of a text, token by token."""

    def __init__(
        self,
        tokens: TokenBytes,
        *,
        skip_special_tokens: bool,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """Special tokens that are `kept` are not skipped."""
        self._tokens = tokens
        self._skipped = tokens.special if skip_special_tokens else frozenset[int]()
        if kept:
            self._skipped -= kept
        self._begun = False

    def next(self, token: int) -> bytes:
        """The bytes that `token` adds. Unknown ones are those of U+FFFD."""
        if token in self._skipped:
            return b""
        data = self._tokens[token]
        if not self._begun and data != b"":
            self._begun = True
            data = self._tokens.first(token)
        return _UNKNOWN if data is None else data


_MODULE = "pyo3_runtime"
"""Each library has a `PanicException` of its own, which no module exports."""


def as_exception(error: BaseException) -> Exception:
    """Return `error` itself if it is an Exception, or a RuntimeError in place of a panic.

    Raises `error` if it is neither: KeyboardInterrupt, for one, ends more than a call.
    """
    if isinstance(error, Exception):
        return error
    if type(error).__module__ == _MODULE:
        return RuntimeError(" ".join(str(error).split()))
    raise error


def not_tokenized(error: BaseException) -> RefusalError:
    """Return the refusal for an Exception or a panic of the library. Raises anything else."""
    return RefusalError("invalid_request", f"the text cannot be tokenized: {as_exception(error)}")


def _numbered_words(vocab_size: int) -> RawTokenizer:
    raw = RawTokenizer(WordLevel({f"<{i}>": i for i in range(vocab_size)}, "<0>"))
    raw.pre_tokenizer = WhitespaceSplit()
    return raw


def _decoded(raw: RawTokenizer, ids: list[int], *, skip_special_tokens: bool = False) -> str:
    try:
        return raw.decode(ids, skip_special_tokens=skip_special_tokens)
    except BaseException as error:
        raise as_exception(error) from None
