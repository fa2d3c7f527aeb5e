"""The certificate of new connections: renewed, or kept where the new one cannot be used."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.daemon.api_process import Certificate
from server.daemon.credentials import TLSError, server_context
from server.settings.settings import TLS
from tests.server.certificates import make_certificate, unverified_context


@asynccontextmanager
async def echoing(context: ssl.SSLContext) -> AsyncGenerator[int]:
    """A server's port, which answers each line with the same."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def connect(
    port: int, name: str | None
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The certificate that the server shows (DER), and the connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=unverified_context(), server_hostname=name
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return shown, reader, writer


@pytest.mark.parametrize("name", ["localhost", ""])  # without a name there is no SNI
async def test_new_connections_see_the_newest(tmp_path: Path, name: str) -> None:
    cert, key = make_certificate(tmp_path)
    first = ssl.PEM_cert_to_DER_cert(cert.read_text())
    context = server_context(cert, key)
    certificate = Certificate(context, TLS(cert=str(cert), key=str(key)))
    async with echoing(context) as port:
        shown, reader, writer = await connect(port, name)
        assert shown == first

        key.write_text("broken")
        with pytest.raises(TLSError, match=str(key)):
            certificate.renew()
        assert (await closed(await connect(port, name))) == first

        make_certificate(tmp_path)
        certificate.renew()
        second = ssl.PEM_cert_to_DER_cert(cert.read_text())
        assert (await closed(await connect(port, name))) == second != first

        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        await closed((shown, reader, writer))


async def closed(
    connection: tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter],
) -> bytes:
    shown, _, writer = connection
    writer.close()
    await writer.wait_closed()
    return shown
