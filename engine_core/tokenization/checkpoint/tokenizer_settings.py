"""The settings of a checkpoint's tokenizer: read from the files beside `tokenizer.json`, and put
into the tokenizer that this describes."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine_core.tokenization.checkpoint.added_tokens import add_tokens
from engine_core.tokenization.checkpoint.bookkeeping import BOOKKEEPING, NOT_SUPPORTED
from engine_core.tokenization.checkpoint.class_rules import Declared
from engine_core.tokenization.checkpoint.special_tokens import read_declared_tokens
from engine_core.tokenization.checkpoint.tokenizer_classes import (
    EVERY_CLASS,
    GENERIC,
    KEYS_OF_CLASSES,
    TokenizerClass,
    tokenizer_class,
)
from workers.contract.checkpoint.config_keys import ConfigKeys, Refuse, stop
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, find_file, optional


class TokenizerSettings:
    """What a folder's files say of its tokenizer. What is wrong with them goes to `refuse`.

    Raises ModelConfigError for a file that cannot be read, as its methods do for a key of another
    type.
    """

    def __init__(self, folder: Path, refuse: Refuse = stop) -> None:
        name, kind = "tokenizer_config.json", dict[str, Any]
        keys = ConfigKeys(folder / name, optional(folder, name, kind) or {}, refuse=refuse)
        config = optional(folder, "config.json", kind) or {}
        self._declared = Declared(keys, read_declared_tokens(folder, keys, refuse), config, refuse)
        self._class = _class(folder, self._declared)

    @property
    def template_tokens(self) -> dict[str, str]:
        """The named tokens, as chat templates write them: `bos_token`, `eos_token`, ..."""
        named = self._declared.tokens.named
        usual = {name: text for name, text in self._class.tokens.items() if name not in named}
        return usual | {name: token.content for name, token in named.items() if token}

    def check_keys(self) -> None:
        """Refuse keys that are not known, and values that no tokenizer obeys here. This is done
        once, when a model is set up."""
        keys = self._declared.keys
        keys.neutral(NOT_SUPPORTED)
        keys.ignore(*KEYS_OF_CLASSES)
        keys.check_all_read(BOOKKEEPING.__contains__, "a tokenizer")

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let what was read from tokenizer.json obey the settings, or refuse them."""
        for key, rule in {**EVERY_CLASS, **self._class.rules}.items():
            rule(key, tokenizer, self._declared)
        add_tokens(tokenizer, self._declared, self._class)


def _class(folder: Path, declared: Declared) -> TokenizerClass:
    """The class that reads a tokenizer.json. One that is not known is refused."""
    keys, config = declared.keys, declared.config
    of_config = ConfigKeys(folder / "config.json", config)
    named = keys.optional("tokenizer_class", str) or of_config.optional("tokenizer_class", str)
    byte_level = named is not None and _is_byte_level(folder)
    own = tokenizer_class(str(config.get("model_type")), named, byte_level=byte_level)
    if own is None:
        declared.refuse(keys.error(f"tokenizer_class {named!r} is not supported"))
    return own or GENERIC


def _is_byte_level(folder: Path) -> bool:
    """Whether any rule of a tokenizer.json is called ByteLevel, as transformers finds it."""
    file = find_file(folder, "tokenizer.json", TOKENIZER_BYTES)
    return file is not None and b'"ByteLevel"' in file.read_bytes()
