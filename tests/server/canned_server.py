"""A server that answers every request alike: whatever bytes it was given, good HTTP or not."""

import socketserver
import threading
import time


class CannedServer:
    """`with` listens on a free port of the loopback. Each answer is written piece by piece, and
    with `pause` seconds between them; then, if so asked, the connection is cut."""

    def __init__(self, pieces: list[bytes], *, pause: float = 0.0, cut: bool = False) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        deployment = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                deployment.connections += 1
                while request := self._request():
                    deployment.requests.append(request)
                    for index, piece in enumerate(pieces):
                        time.sleep(pause if index else 0)
                        self.wfile.write(piece)
                    if cut:
                        return

            def _request(self) -> bytes:
                """The body of the next request; empty at the end."""
                length = 0
                while (line := self.rfile.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                return self.rfile.read(length)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "CannedServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*parts: bytes) -> list[bytes]:
    """An answer in chunks: its head, and each chunk."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *[b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b"")]]
