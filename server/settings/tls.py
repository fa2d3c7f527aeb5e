"""The certificate and private key for TLS, checked whenever they are read."""

import ssl
from pathlib import Path

from server.settings.server_config import TLS


class TLSError(ValueError):
    """A certificate and a key that cannot be used; `key` is the setting at fault."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def checked_tls(cert: Path, key: Path) -> TLS:
    """Both files as absolute paths. Raises TLSError unless `server_context` can load them."""
    server_context(cert, key)
    return TLS(cert=str(cert.absolute()), key=str(key.absolute()))


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's context with what the files hold now. Raises TLSError unless they are PEM and
    belong together.

    An encrypted key is refused: nobody could type its passphrase.
    """
    if b"-----BEGIN CERTIFICATE-----" not in _content("tls_cert", cert):
        raise TLSError("tls_cert", f"{cert} holds no PEM certificate")
    secret = _content("tls_key", key)
    if b"PRIVATE KEY-----" not in secret:
        raise TLSError("tls_key", f"{key} holds no PEM private key")
    if b"ENCRYPTED" in secret:
        raise TLSError("tls_key", f"{key} is encrypted; `openssl pkey` writes it without")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TLSError("tls_key", f"{key} is not the key of {cert}") from None
        raise TLSError("tls_cert", f"{cert} and {key} are not valid: {error.reason}") from None
    return context


def unverified_context() -> ssl.SSLContext:
    """For requests to the daemon's own address, which its certificate need not name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _content(key: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TLSError(key, f"{file} cannot be read: {error.strerror}") from None
