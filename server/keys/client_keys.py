"""Whose a request is: the API key that it came with, and what follows from that."""

import hashlib
import hmac
from collections.abc import Collection, Sequence
from typing import NamedTuple

from engine_core.messages import NO_KEY, KeyShare
from server.settings.api_keys import ALL_KEYS, APIKey

_SCHEME = b"bearer "
_NUMBER_BYTES = 6


class ClientKey(NamedTuple):
    """A key by its `name` in metrics, with its `share` of an engine. What its requests store is the
    `owner`'s: that of the name it was given, or else its own. Only requests with the same `salt`
    share cached prefixes, if what they name themselves is the same, too."""

    name: str
    owner: str
    share: KeyShare
    salt: str

    def salted(self, own: str) -> str:
        """The cache salt of a job that names its `own`."""
        return self.salt + own


ANYBODY = ClientKey("", "", NO_KEY, "")
"""Where there are no keys: everything is everybody's."""


class ClientKeys:
    """Finds the API keys of requests. Without keys, all are ANYBODY's."""

    def __init__(
        self, keys: Sequence[APIKey], secret: str = "", share_prefixes: Collection[str] = ()
    ) -> None:
        """`secret` is the daemon's own, in hexadecimal; those named in `share_prefixes` share
        cached prefixes among each other."""
        self._secret, self._share_prefixes = bytes.fromhex(secret), share_prefixes
        self.anybody = ANYBODY
        self.replace(keys)

    def replace(self, keys: Sequence[APIKey]) -> None:
        """From now on these are the keys."""
        self._keys = [
            (bytes.fromhex(key.digest), self._client(key, alone=len(keys) == 1)) for key in keys
        ]

    def find(self, authorization: bytes) -> ClientKey | None:
        """Whose a request is; `authorization` is the header's value: `Bearer KEY`. None: nobody's
        who may be here.

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
        """Who has stored something, whether the key is still valid or not. What is computed for it
        counts for no share."""
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
