"""What an API process reads again after SIGHUP: the daemon's API keys and its certificate.

Requests and connections that are open go on: a key is asked for when a request begins, a
certificate when a connection does.
"""

import logging
import ssl
from pathlib import Path

import msgspec

from server.keys.client_keys import ClientKeys
from server.settings.server_config import TLS, ServerConfig
from server.settings.tls import TLSError, server_context

_log = logging.getLogger(__name__)


class Certificate:
    """What new connections on `context` are shown: what it was made with, or the newest renewal."""

    def __init__(self, context: ssl.SSLContext, tls: TLS) -> None:
        self._context = context
        self._tls = tls
        # Loading into the context that is in use would leave it without a key where one fails.
        context.sni_callback = self._on_client_hello

    def renew(self, tls: TLS) -> None:
        """Read the files of `tls`, if they have been renewed. Raises TLSError, and keeps what it
        has."""
        if tls != self._tls:
            self._context = server_context(Path(tls.cert), Path(tls.key))
            self._tls = tls

    def _on_client_hello(self, connection: ssl.SSLObject, name: str | None, _: object) -> None:
        """Called for each connection, whether the client named a host or not."""
        connection.context = self._context


def read_config(file: Path) -> ServerConfig:
    """The configuration that the supervisor has written."""
    return msgspec.json.decode(file.read_bytes(), type=ServerConfig)


def reload(config_file: Path, keys: ClientKeys, certificate: Certificate | None) -> None:
    """Apply what the supervisor, which has checked everything, has written anew. A certificate that
    was replaced meanwhile by one that cannot be used is logged here."""
    config = read_config(config_file)
    keys.replace(config.api_keys)
    if certificate is not None and config.tls is not None:
        try:
            certificate.renew(config.tls)
        except TLSError as error:
            _log.warning("%s; the former certificate stays in use", error)
