"""The settings of a checkpoint's tokenizer: read from the files beside `tokenizer.json`, and put
into the tokenizer that this describes."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from engine_core.tokenization.checkpoint.bookkeeping import BOOKKEEPING, NOT_SUPPORTED
from engine_core.tokenization.checkpoint.class_rules import Declared
from engine_core.tokenization.checkpoint.special_tokens import (
    DeclaredToken,
    read_declared_tokens,
)
from engine_core.tokenization.checkpoint.tokenizer_classes import (
    EVERY_CLASS,
    GENERIC,
    KEYS_OF_CLASSES,
    TokenizerClass,
    tokenizer_class,
)
from workers.contract.config_keys.keys import ConfigKeys, Refuse, stop
from workers.contract.model_config import ModelConfigError, read_json

_TOKENIZER_FILE = "tokenizer.json"
_READER = "a tokenizer"


class TokenizerSettings:
    """What a folder's files say of its tokenizer. What is wrong with them goes to `refuse`.

    Raises ModelConfigError for a file that cannot be read, as its methods do for a key of another
    type.
    """

    def __init__(self, folder: Path, refuse: Refuse = stop) -> None:
        file = folder / "tokenizer_config.json"
        keys = ConfigKeys(file, _json(file), refuse=refuse)
        config = _json(folder / "config.json")
        self._declared = Declared(keys, read_declared_tokens(folder, keys, refuse), config, refuse)
        self._class = self._own_class(folder)

    @property
    def template_tokens(self) -> dict[str, str]:
        """The named tokens, as chat templates write them: `bos_token`, `eos_token`, ..."""
        named = {
            name: token and token.content for name, token in self._declared.tokens.named.items()
        }
        return {name: text for name, text in ({**self._class.tokens, **named}).items() if text}

    def check_keys(self) -> None:
        """Refuse keys that are not known, and values that no tokenizer obeys here."""
        keys = self._declared.keys
        keys.neutral(NOT_SUPPORTED)
        keys.ignore(*KEYS_OF_CLASSES, *(rule.key for rule in EVERY_CLASS))
        keys.check_all_read(BOOKKEEPING, _READER)

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let what was read from tokenizer.json obey the settings, or refuse them."""
        self.check_keys()
        for rule in (*EVERY_CLASS, *self._class.rules):
            rule.apply(tokenizer, self._declared)
        self._add_tokens(tokenizer)

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Add the declared tokens that tokenizer.json lacks, or has with other properties."""
        declared = self._declared.tokens
        own = {each.content: each for each in tokenizer.get_added_tokens_decoder().values()}
        named = {token.content for token in declared.named.values() if token}
        changed = dict[str, AddedToken]()
        for _, token in sorted(declared.by_id.items()):
            had, added = own.get(token.content), _added(token)
            if had is None or not (declared.only_ids or repr(had) == repr(added)):
                added.special |= token.content in named
                changed[token.content] = added
        self._check_changed(changed)
        for token in (*declared.special, *self._usual_tokens(tokenizer)):
            if token.content not in own:
                changed.setdefault(token.content, _added(token))
        tokenizer.add_tokens(list(changed.values()))  # pyright: ignore[reportUnknownMemberType]
        self._check_ids(tokenizer)

    def _usual_tokens(self, tokenizer: Tokenizer) -> list[DeclaredToken]:
        """Those of the class's own tokens that are in the vocabulary."""
        named = self._declared.tokens.named
        texts = [text for name, text in self._class.tokens.items() if name not in named]
        known = [text for text in texts if tokenizer.token_to_id(text) is not None]
        return [DeclaredToken(text, special=True) for text in known]

    def _check_changed(self, changed: dict[str, AddedToken]) -> None:
        """Refuse what the class does not heed of the special tokens."""
        if not self._class.resets_special:
            return
        for token in self._declared.tokens.special:
            added = changed.get(token.content)
            if added is not None and (added.lstrip or added.rstrip or added.single_word):
                what = f"{token.content} is not supported with lstrip, rstrip or single_word"
                self._refuse(what)

    def _check_ids(self, tokenizer: Tokenizer) -> None:
        for index, token in self._declared.tokens.by_id.items():
            if (actual := tokenizer.token_to_id(token.content)) != index:
                self._refuse(f"{token.content} is {index}, and by tokenizer.json {actual}")

    def _refuse(self, text: str) -> None:
        error = ModelConfigError(f"{self._declared.tokens.source}: {text}")
        self._declared.refuse(error)

    def _own_class(self, folder: Path) -> TokenizerClass:
        """The class that reads the tokenizer. One that is not known is refused."""
        keys, config = self._declared.keys, self._declared.config
        named = keys.optional("tokenizer_class", str) or config.get("tokenizer_class")
        byte_level = named is not None and _is_byte_level(folder / _TOKENIZER_FILE)
        own = tokenizer_class(str(config.get("model_type")), named, byte_level=byte_level)
        if own is None:
            self._declared.refuse(keys.error(f"tokenizer_class {named!r} is not supported"))
        return own or GENERIC


def _added(token: DeclaredToken) -> AddedToken:
    properties = {
        name: value
        for name, value in msgspec.structs.asdict(token).items()
        if name != "content" and value is not None
    }
    return AddedToken(token.content, **properties)


def _is_byte_level(file: Path) -> bool:
    """Whether any rule of a tokenizer.json is called ByteLevel, as transformers finds it."""
    return file.exists() and b'"ByteLevel"' in file.read_bytes()


def _json(file: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises ModelConfigError."""
    return read_json(file) if file.exists() else {}
