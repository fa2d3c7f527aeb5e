"""One HTTP process: `python -P -m server.daemon.api_process CONFIG.json FD INDEX RESTARTS`.

CONFIG.json holds a ServerConfig; FD is a listening socket that all HTTP processes share; INDEX is
the number of this one, which was started RESTARTS times before. The first DRAIN_SIGNAL
drains, the second ends running requests; SIGHUP reads API keys and the certificate again. SIGTERM
ends it, and with it the daemon, at once: one that drained beside others would have the daemon seem
healthy and ill in turns.
"""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import uvicorn
import uvloop

from server.api.responses.websocket import SOCKET_PATH
from server.daemon.acceptor import Acceptor
from server.daemon.application import all_endpoints, create_app
from server.daemon.credentials import TLSError, server_context
from server.event_loop import keep_beating, lasting_task
from server.http.socket_wire import SocketProtocol
from server.http.wire import CONNECTION_LOG, LogLimit, UnreadAnswers, WireProtocol
from server.service.service import Registry, Service
from server.settings.api_keys import ClientKeys
from server.settings.settings import TLS, ServerConfig
from workers.contract.process import DRAIN_SIGNAL, exit_with_parent, open_log


class Certificate:
    """The certificate for new connections on `context`: its first one, or the newest renewal."""

    def __init__(self, context: ssl.SSLContext, tls: TLS) -> None:
        self._context = context
        self._tls = tls
        # Loading into the context that is in use would leave it without a key where one fails.
        context.sni_callback = self._on_client_hello

    def renew(self) -> None:
        """Read the files again. Raises TLSError, and keeps what it has."""
        self._context = server_context(Path(self._tls.cert), Path(self._tls.key))

    def _on_client_hello(self, connection: ssl.SSLObject, name: str | None, _: object) -> None:
        """Called for each connection, whether the client named a host or not."""
        connection.context = self._context


def read_config(file: Path) -> ServerConfig:
    return msgspec.json.decode(file.read_bytes(), type=ServerConfig)


def reload(config_file: Path, keys: ClientKeys, certificate: Certificate | None) -> None:
    """Apply what the supervisor has read anew. It has said what is wrong with a certificate."""
    keys.replace(read_config(config_file).api_keys)
    if certificate is not None:
        with suppress(TLSError):
            certificate.renew()


# Longer than clients keep idle connections, so that it is they who close them.
_KEEP_ALIVE_S = 75
# After the drain only connections without a running request are left.
_CLOSE_S = 2


class DrainingServer(uvicorn.Server):
    """uvicorn that keeps accepting after DRAIN_SIGNAL until the service has drained."""

    def __init__(self, config: uvicorn.Config, service: Service, listener: socket.socket) -> None:
        super().__init__(config)
        self._service, self._listener = service, listener
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept. uvicorn itself listens on no socket."""
        await super().startup(sockets=[])
        connections = self.server_state.connections
        counts = self._service.metrics.connections
        self._acceptor = Acceptor(self._listener, self._connect, connections.__len__, counts)

    async def on_tick(self, counter: int) -> bool:
        self._acceptor.publish()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.close()
        await super().shutdown(sockets=[])

    async def _connect(self, connection: socket.socket) -> None:
        """Serve a client. Raises OSError where the handshake fails."""
        protocol = partial(
            cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(protocol, connection, ssl=self.config.ssl)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle none but DRAIN_SIGNAL while it serves."""
        asyncio.get_running_loop().add_signal_handler(DRAIN_SIGNAL, self._on_drain_signal)
        yield

    def _on_drain_signal(self) -> None:
        if self._draining is None:
            self._draining = lasting_task(self._drain(), "drain")
        else:
            self._service.cut()

    async def _drain(self) -> None:
        await self._service.drain()
        self.should_exit = True


async def serve(
    config_file: Path, config: ServerConfig, listener: socket.socket, *, index: int, restarts: int
) -> None:
    """Serve on `listener` until it has drained. Raises TokenizerError for a bad model folder."""
    registry = Registry.load(config.models, all_endpoints(), default_model=config.default_model)
    service = Service(config, registry, index=index, replaces=restarts > 0)
    uvicorn_config = _uvicorn_config(config, service)
    uvicorn_config.load()
    for log in (CONNECTION_LOG, logging.getLogger("uvicorn.error")):
        log.addFilter(LogLimit(log))
    _reload_on_sighup(config_file, config, service, uvicorn_config.ssl)
    # A seventh of a busy process' time went into collecting garbage, nearly all of it acyclic.
    gc.collect()
    gc.freeze()  # these objects live until the end
    gc.set_threshold(20_000, 20, 50)
    beating = lasting_task(keep_beating(), "heartbeat")
    await DrainingServer(uvicorn_config, service, listener).serve()
    beating.cancel()
    if service.access_log is not None:
        service.access_log.close()
    if service.tracer is not None:
        service.tracer.close()


def _uvicorn_config(config: ServerConfig, service: Service) -> uvicorn.Config:
    unread = UnreadAnswers(service.ledger, config.max_unread_seconds)
    return uvicorn.Config(
        create_app(service),
        # It only calls it for each connection.
        http=cast(
            "type[WireProtocol]",
            partial(
                WireProtocol,
                note_unread=service.note_unread,
                unread_answers=unread,
                socket_path=SOCKET_PATH,
            ),
        ),
        ws=cast("type[SocketProtocol]", partial(SocketProtocol, unread_answers=unread)),
        ws_max_size=config.max_body_size,
        ws_per_message_deflate=False,  # as bodies, messages come uncompressed
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        log_level=logging.WARNING,  # the supervisor logs starts and stops
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_S,
        ssl_certfile=config.tls and config.tls.cert,
        ssl_keyfile=config.tls and config.tls.key,
    )


def _reload_on_sighup(
    config_file: Path, config: ServerConfig, service: Service, context: ssl.SSLContext | None
) -> None:
    certificate = Certificate(context, config.tls) if context and config.tls else None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload, config_file, service.keys, certificate)
    # It is blocked from birth: one that came since the configuration was read is handled now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    file, descriptor, index, restarts = sys.argv[1:]
    config = read_config(config_file := Path(file))
    open_log("api", config.log_level)
    listener = socket.socket(fileno=int(descriptor))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config_file, config, listener, index=int(index), restarts=int(restarts)))


if __name__ == "__main__":
    main()
