"""A model's tokenizer, read from `tokenizer.json` without transformers (and so without torch)."""

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
from engine_core.tokenization.checkpoint.tokenizer_settings import TokenizerSettings
from engine_core.tokenization.panics import as_exception
from engine_core.tokenization.pipeline.byte_level import longest_token
from engine_core.tokenization.pipeline.continuation import continuing
from engine_core.tokenization.pipeline.growth import check_growth
from engine_core.tokenization.token_bytes import REPLACEMENT, TokenBytes
from workers.contract.checkpoint.config_keys import Refuse, stop
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, find_file, read_bytes
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig, ModelConfigError

TOKENIZER_FILE = "tokenizer.json"


class TokenizerError(ValueError):
    """A tokenizer is missing or unreadable; one line says which file."""


class Tokenizer:
    """Text to ids and back. Ids travel as int32 bytes.

    Encoding always goes through `encode_batch_fast`: plain `encode` holds the interpreter's lock
    for as long as it runs.
    """

    def __init__(self, raw: RawTokenizer, growth: float = 1) -> None:
        """`growth` is how many times longer its rules may make a text (see `check_growth`)."""
        raw.no_truncation()
        raw.no_padding()
        self.raw = raw
        self.growth = growth

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Raises TokenizerError if `folder` has no readable tokenizer.json."""
        return cls.read(folder / TOKENIZER_FILE)

    @classmethod
    def read(cls, file: Path) -> "Tokenizer":
        """The tokenizer in a file. Raises TokenizerError if it cannot be read."""
        try:
            data = read_bytes(file.parent, file.name, TOKENIZER_BYTES)
        except ModelConfigError as error:
            raise TokenizerError(str(error)) from None
        try:
            growth = check_growth(data)
            return cls(RawTokenizer.from_buffer(data), growth)
        except BaseException as error:  # a plain Exception for any bad file, or a panic
            raise TokenizerError(f"{file} cannot be read: {as_exception(error)}") from None

    @classmethod
    def for_model(
        cls, model: ModelConfig, load_format: LoadFormat, refuse: Refuse = stop
    ) -> "Tokenizer":
        """The tokenizer beside a checkpoint's weights, with the settings in the files beside it.

        Random weights need none: a text is then a list of words like `<17>`, one an id.
        Raises TokenizerError, as `load` does. Settings that are not obeyed go to `refuse`.
        """
        file = Path(model.tokenizer_file or Path(model.path) / TOKENIZER_FILE)
        try:
            if load_format == "dummy" and not find_file(file.parent, file.name):
                return cls(_numbered_words(model.vocab_size))
            tokenizer = cls.read(file)
            TokenizerSettings(Path(model.path), refuse).put_into(tokenizer.raw)
        except ModelConfigError as error:
            raise TokenizerError(str(error)) from None
        if model.lowercase:
            tokenizer.lowercase()
        return tokenizer

    def lowercase(self) -> None:
        """Make the tokenizer lowercase texts before its own normalization."""
        own = self.raw.normalizer
        first = Lowercase()
        self.raw.normalizer = first if own is None else Normalizers([first, own])

    def encodings(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        add_special_tokens: bool = True,
        offsets: bool = False,
        continues: bool = False,
    ) -> list[Encoding]:
        """Tokenize texts, or pairs, in one call; with `offsets` it is known where their tokens are.
        With `continues` each is taken for what follows another text.

        Raises RefusalError if one of them cannot be tokenized: the regular expressions of a
        tokenizer have limits, beyond which the library panics.
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
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD, as in Python.

        Raises an Exception if the library fails, or panics.
        """
        try:
            text = self.raw.decode(ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            raise as_exception(error) from None
        if REPLACEMENT not in text:
            return text
        data = self.token_bytes.joined(ids, skip_special_tokens=skip_special_tokens)
        return data.decode(errors="replace")

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of single tokens."""
        return TokenBytes(self.raw)

    def fewest_tokens(self, text: str) -> int:
        """So many tokens a text has at least, known without tokenizing it; 0 where the tokenizer
        might drop parts of it, or take any number of characters for one token."""
        return -(-len(text.encode()) // self._longest) if self._longest else 0

    @cached_property
    def continuation(self) -> RawTokenizer:
        """Tokenizes what continues a text, unless it has one of `starting_ids`."""
        return continuing(self.raw)

    @cached_property
    def starting_ids(self) -> frozenset[int]:
        """The ids of tokens behind which a text is tokenized like one that begins there, if the
        tokenizer puts something before texts."""
        alike = self.continuation is self.raw
        return frozenset() if alike else frozenset(self.continuation.get_added_tokens_decoder())

    @cached_property
    def _longest(self) -> int | None:
        return longest_token(self.raw)

    def id_to_token(self, token: int) -> str:
        """The vocabulary's own spelling of a token; empty for an id without one."""
        return self.raw.id_to_token(token) or ""


def not_tokenized(error: BaseException) -> RefusalError:
    """Return the refusal for what the library raised: a plain Exception, or a panic. Raises
    anything else."""
    return RefusalError("invalid_request", f"the text cannot be tokenized: {as_exception(error)}")


def _numbered_words(vocab_size: int) -> RawTokenizer:
    raw = RawTokenizer(WordLevel({f"<{i}>": i for i in range(vocab_size)}, "<0>"))
    raw.pre_tokenizer = WhitespaceSplit()
    return raw
