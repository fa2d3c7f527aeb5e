"""What an API process reads again after SIGHUP: the daemon's API keys and its certificate.

Requests and connections that are open go on: a key is asked for when a request begins, a
certificate when a connection does.
"""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

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


class Reload:
    """Applies to `keys` and `certificate` what `read_config` finds."""

    def __init__(
        self,
        read_config: Callable[[], ServerConfig],
        keys: ClientKeys,
        certificate: Certificate | None,
    ) -> None:
        self._read_config = read_config
        self._keys = keys
        self._certificate = certificate

    def __call__(self) -> None:
        """The supervisor has checked everything. A certificate that was replaced meanwhile by one
        that cannot be used is logged here."""
        config = self._read_config()
        self._keys.replace(config.api_keys)
        if self._certificate is not None and config.tls is not None:
            try:
                self._certificate.renew(config.tls)
            except TLSError as error:
                _log.warning("%s; the former certificate stays in use", error)
