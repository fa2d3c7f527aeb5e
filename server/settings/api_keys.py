"""API keys: read from files, kept as digests, compared in constant time."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_SCHEME = b"bearer "
_KEY = re.compile(r"[!-~]+")


class APIKeyError(ValueError):
    """A text cannot be a key, or a file has none. The message is one line and shows no key."""


def checked_key(key: str) -> str:
    """`key`. Raises APIKeyError unless a header can carry it."""
    if not _KEY.fullmatch(key):
        raise APIKeyError("a key is one or more visible ASCII characters")
    return key


def read_key_file(file: Path) -> list[str]:
    """The keys of a file, one a line; blank lines and lines that begin with # are ignored.

    Raises APIKeyError.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise APIKeyError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise APIKeyError(f"{file} is not UTF-8") from None
    keys: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            try:
                keys.append(checked_key(line))
            except APIKeyError as error:
                raise APIKeyError(f"line {number} of {file}: {error}") from None
    if not keys:
        raise APIKeyError(f"{file} holds no key")
    return keys


def digests(keys: Iterable[str]) -> tuple[str, ...]:
    """SHA-256 of each key, in hexadecimal; a key given twice counts once."""
    return tuple(hashlib.sha256(key.encode()).hexdigest() for key in dict.fromkeys(keys))


class KeyCheck:
    """Checks the API keys of requests. Without keys, every request is admitted."""

    def __init__(self, keys: Sequence[str]) -> None:
        """`keys` are digests, from `digests`."""
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> None:
        """From now on these are the keys."""
        self._keys = [bytes.fromhex(key) for key in keys]

    def owner(self, authorization: bytes) -> str:
        """Whose a request is that has been admitted: a digest of its key, which no other key has.
        Without keys everything is everybody's, an empty text's."""
        return hashlib.sha256(_token(authorization)).hexdigest() if self._keys else ""

    def admits(self, authorization: bytes) -> bool:
        """`authorization` is the header's value: `Bearer KEY`.

        The time taken reveals only the number of keys.
        """
        if not self._keys:
            return True
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = hashlib.sha256(_token(authorization)).digest()
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return any(matches)


def _token(authorization: bytes) -> bytes:
    return authorization[len(_SCHEME) :].strip()
