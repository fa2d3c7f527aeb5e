"""A model's reasoning as clients send it back: known by its signature to be the model's own."""

import base64
import binascii
import hashlib
import hmac
from typing import Self

from fastapi import Request

from server.service.service import service_of

_DIGEST = hashlib.sha256
_SIZE = _DIGEST().digest_size


class SignedReasoning:
    """Signs reasoning, and tells signed from other reasoning, with a secret of the daemon's."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    @classmethod
    def of(cls, request: Request) -> Self:
        """The one of the daemon that serves the request."""
        return cls(service_of(request).config.state.secret)

    def seal(self, text: str, *, whole: bool = True) -> str:
        """A signature of the reasoning, with its text in it where that is `whole`."""
        data = text.encode() if whole else b""
        return base64.b64encode(self._signature(text.encode()) + data).decode()

    def opened(self, sealed: str, shown: str = "") -> str | None:
        """The reasoning that was sealed, which is `shown` beside a seal without text. None if
        another daemon sealed it, or someone has changed it."""
        try:
            data = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            return None
        text = data[_SIZE:] or shown.encode()
        if not hmac.compare_digest(data[:_SIZE], self._signature(text)):
            return None
        return text.decode()

    def _signature(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, b"reasoning" + text, _DIGEST)
