"""Texts that clients keep and bring back, signed so that only the daemon's own are taken."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

_SIGNATURE_BYTES = 16


class SignedText:
    """Encodes and signs texts with a `secret`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, text: str) -> str:
        """The text with its signature, in letters and digits."""
        data = text.encode()
        return urlsafe_b64encode(self._signature(data) + data).decode()

    def text_of(self, signed: str) -> str | None:
        """The text that `sign` has signed with this secret, None of anything else."""
        try:
            whole = urlsafe_b64decode(signed)
        except ValueError:
            return None
        signature, data = whole[:_SIGNATURE_BYTES], whole[_SIGNATURE_BYTES:]
        is_ours = hmac.compare_digest(signature, self._signature(data))
        return data.decode() if is_ours else None

    def _signature(self, data: bytes) -> bytes:
        return hmac.new(self._secret, data, hashlib.sha256).digest()[:_SIGNATURE_BYTES]
