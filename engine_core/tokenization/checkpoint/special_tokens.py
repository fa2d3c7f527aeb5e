"""The tokens that a checkpoint declares beside `tokenizer.json`, in its three files."""

from pathlib import Path
from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import ConfigKeys, Refuse
from workers.contract.checkpoint.folder_files import optional

_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The named tokens of every tokenizer; a checkpoint may have others."""

_MAP_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_BY_ID = "added_tokens_decoder"
_BY_NAME = "model_specific_special_tokens"
_EXTRA = ("extra_special_tokens", "additional_special_tokens")


class DeclaredToken(msgspec.Struct, frozen=True):
    """A token that is found in texts before they are split: where, and whether decoding skips it.

    Without `normalized`, a special token is found in the text itself, another in its normal form.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


class DeclaredTokens(msgspec.Struct):
    """Special tokens by name, further special tokens, and added tokens by id.

    A name with None has no token. `source` is the file, with its key, that `by_id` is from; with
    `only_ids` that does not say how a token is found in texts.
    """

    named: dict[str, DeclaredToken | None] = {}
    extra: list[DeclaredToken] | None = None
    by_id: dict[int, DeclaredToken] = {}
    source: str = ""
    only_ids: bool = False

    @property
    def special(self) -> list[DeclaredToken]:
        """The special tokens, in the order in which missing ones get their ids."""
        names = dict.fromkeys((*_NAMES, *self.named))
        named = [self.named.get(name) for name in names]
        return [token for token in [*named, *(self.extra or [])] if token]


def read_declared_tokens(folder: Path, keys: ConfigKeys, refuse: Refuse) -> DeclaredTokens:
    """The tokens that a folder declares whose tokenizer_config.json has `keys`. The other two files
    are of earlier versions: they count only where that has no `added_tokens_decoder`, but then
    more than its names do.

    Raises ModelConfigError for a file that cannot be read, or a token of another form.
    """
    declared = DeclaredTokens()
    _read_special(keys, declared)
    by_id = keys.optional(_BY_ID, dict[str, DeclaredToken])
    if by_id is not None:
        declared.source = f"{keys.file}: {_BY_ID}"
        declared.by_id = {_id(index, keys): token for index, token in by_id.items()}
        return declared
    special = optional(folder, _MAP_FILE, dict[str, Any])
    if special is not None:
        older = ConfigKeys(folder / _MAP_FILE, special, refuse=refuse)
        _read_special(older, declared)
        older.check_all_read(lambda _: False, "a tokenizer")
    added = optional(folder, _ADDED_FILE, dict[str, int])
    if added is not None:
        names = {token.content for token in declared.special}
        declared.source, declared.only_ids = str(folder / _ADDED_FILE), True
        declared.by_id = {
            index: DeclaredToken(content, special=content in names)
            for content, index in added.items()
        }
    return declared


def _read_special(keys: ConfigKeys, declared: DeclaredTokens) -> None:
    for name, value in keys.values.items():
        if name in _NAMES or (name.endswith("_token") and isinstance(value, str | dict)):
            token = keys.optional(name, object)
            declared.named[name] = None if token is None else _special(keys, name, token)
    _read_named(keys, _BY_NAME, declared)
    extra, additional = (keys.optional(name, object) for name in _EXTRA)
    name = _EXTRA[0]
    if declared.extra is None and not extra:
        name, extra = _EXTRA[1], additional
    if isinstance(extra, dict):
        _read_named(keys, name, declared)
    else:
        listed = keys.read(name, list[object], [])
        tokens = [_special(keys, name, token) for token in listed]
        if tokens or any(map(keys.has, _EXTRA)):
            declared.extra = (declared.extra or []) + tokens


def _read_named(keys: ConfigKeys, name: str, declared: DeclaredTokens) -> None:
    tokens = keys.read(name, dict[str, object], {})
    declared.named.update({each: _special(keys, name, token) for each, token in tokens.items()})


def _special(keys: ConfigKeys, name: str, token: object) -> DeclaredToken:
    """A token as key `name` has it. Raises ModelConfigError for another form."""
    if isinstance(token, str):
        return DeclaredToken(token, special=True)
    try:
        return msgspec.structs.replace(msgspec.convert(token, DeclaredToken), special=True)
    except msgspec.ValidationError as error:
        raise keys.error(f"{name} is not a token: {error}") from None


def _id(index: str, keys: ConfigKeys) -> int:
    """Raises ModelConfigError unless a key of `added_tokens_decoder` is a number."""
    if not index.isdecimal():
        raise keys.error(f"{_BY_ID}: {index!r} is not an id")
    return int(index)
