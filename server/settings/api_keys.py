"""API keys: read from files, kept as digests, and the client that each stands for."""

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from engine_core.messages import NO_KEY, KeyShare

ALL_KEYS = "all"
"""In place of the names of all keys."""

_KEY = re.compile(r"[!-~]+")

# Metrics call all keys together, and keys that came later, by the names that no key may have.
_NAME = rf"^(?!({ALL_KEYS}|other)$)[A-Za-z0-9._-]{{1,64}}$"


class GivenKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as a person gave it. Without a name it gets one."""

    text: str = msgspec.field(name="=")  # no option in a file is called so
    name: Annotated[str, Meta(pattern=_NAME)] = ""
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0


class APIKey(msgspec.Struct, frozen=True):
    """A key as processes hold it: its SHA-256 in hexadecimal, and whether somebody gave it its
    name."""

    digest: str
    name: str
    weight: float = 1.0
    is_named: bool = False

    @property
    def owner(self) -> str:
        """The owner of what it stores. No digest has a colon."""
        return f"name:{self.name}" if self.is_named else self.digest


class APIKeyError(ValueError):
    """A text cannot be a key, or a file has none. The message is one line and shows no key."""


def checked_key(key: str) -> str:
    """`key`. Raises APIKeyError unless a header can carry it."""
    if not _KEY.fullmatch(key):
        raise APIKeyError("a key is one or more visible ASCII characters")
    return key


def read_key_file(file: Path) -> list[GivenKey]:
    """The keys of a file, one a line, behind `name=NAME` and `weight=NUMBER` if given. Raises
    APIKeyError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise APIKeyError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise APIKeyError(f"{file} is not UTF-8") from None
    keys: list[GivenKey] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            try:
                keys.append(_given_key(line))
            except APIKeyError as error:
                raise APIKeyError(f"line {number} of {file}: {error}") from None
    if not keys:
        raise APIKeyError(f"{file} holds no key")
    return keys


def hashed(keys: Iterable[GivenKey]) -> tuple[APIKey, ...]:
    """The keys, of which each counts once, the first time. Without a name it is called by its
    place."""
    found: dict[str, APIKey] = {}
    for key in keys:
        digest = hashlib.sha256(key.text.encode()).hexdigest()
        name = key.name or f"key-{len(found) + 1}"
        found.setdefault(digest, APIKey(digest, name, key.weight, key.name != ""))
    return tuple(found.values())


def _given_key(line: str) -> GivenKey:
    """Raises APIKeyError."""
    *options, text = line.split()
    parted = (option.partition("=") for option in options)
    given = {name: value for name, _, value in parted}
    try:
        return msgspec.convert(given | {"=": checked_key(text)}, GivenKey, strict=False)
    except msgspec.ValidationError:  # whose message may show a part of the key
        raise APIKeyError(
            "before the key there may be name=NAME (letters, digits, . _ -; at most 64; not all or "
            "other) and weight=NUMBER (from 0.01 to 100)"
        ) from None


_SCHEME = b"bearer "

_NUMBER_BYTES = 6


class ClientKey(NamedTuple):
    """A key by its `name` in metrics, the `owner` of what its requests store, and its `share` of an
    engine. Only requests with the same salt share cached prefixes: this one, and their own."""

    name: str
    owner: str
    share: KeyShare
    salt: str


ANYBODY = ClientKey("", "", NO_KEY, "")
"""Where there are no keys: everything is everybody's."""


class ClientKeys:
    """Finds the API keys of requests. Without keys, all are ANYBODY's."""

    def __init__(
        self, keys: Sequence[APIKey], secret: str = "", share_prefixes: Collection[str] = ()
    ) -> None:
        """`secret` is the daemon's own, in hexadecimal. Keys named in `share_prefixes` have one
        salt."""
        self._secret, self._share_prefixes = bytes.fromhex(secret), share_prefixes
        self.anybody = ANYBODY
        self.replace(keys)

    def replace(self, keys: Sequence[APIKey]) -> None:
        self._keys = [
            (bytes.fromhex(key.digest), self._client(key, alone=len(keys) == 1)) for key in keys
        ]

    def find(self, authorization: bytes) -> ClientKey | None:
        """The client that the value of an `authorization` header, `Bearer KEY`, admits, if any.

        The time taken reveals only the number of keys.
        """
        if not self._keys:
            return self.anybody
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return None
        given = hashlib.sha256(authorization[len(_SCHEME) :].strip()).digest()
        matches = [(hmac.compare_digest(given, digest), client) for digest, client in self._keys]
        return next((client for is_match, client in matches if is_match), None)

    def of_owner(self, owner: str) -> ClientKey:
        """The client that has stored something, whether its key is still valid or not. It has no
        share."""
        found = (client for _, client in self._keys if client.owner == owner)
        gone = ClientKey("", owner, NO_KEY, self._salt(owner)) if owner else ANYBODY
        return next(found, gone)._replace(share=NO_KEY)

    def _client(self, key: APIKey, *, alone: bool) -> ClientKey:
        number = int.from_bytes(bytes.fromhex(key.digest)[:_NUMBER_BYTES])
        share = NO_KEY if alone else KeyShare(max(number, 1), key.weight)
        shares = key.name in self._share_prefixes
        salt = self._salt(ALL_KEYS if shares else key.digest)
        if ALL_KEYS in self._share_prefixes:
            salt = ""
        return ClientKey(key.name, key.owner, share, salt)

    def _salt(self, of: str) -> str:
        return hmac.new(self._secret, of.encode(), hashlib.sha256).hexdigest()
