"""A wire in user space between network interfaces, which it joins like a hub.

`python -m tests.e2e.hosts.wire SECONDS INTERFACE…` delivers every frame so many seconds late. While
the process is stopped, nothing is delivered.
"""

import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 3
_PACKET, _OFFLOAD_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_RECEIVE_BUFFER_FORCE = 33
_BUFFER = 64 << 20
_LARGEST_FRAME = 1 << 17


def _opened(interface: str) -> socket.socket:
    """All frames that `interface` receives. Each has a header that says what the sender's kernel
    left to the hardware: checksums, and the division into packets."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    opened.setsockopt(_PACKET, _OFFLOAD_HEADER, 1)
    opened.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _BUFFER)
    opened.bind((interface, _ALL_PROTOCOLS))
    return opened


def main(delay: float, interfaces: list[str]) -> None:
    """Never returns."""
    ends = [_opened(interface) for interface in interfaces]
    print("ready", flush=True)
    late: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        timeout = max(0.0, late[0][0] - time.monotonic()) if late else None
        for end in select.select(ends, [], [], timeout)[0]:
            late.append((time.monotonic() + delay, end, end.recv(_LARGEST_FRAME)))
        while late and late[0][0] <= time.monotonic():
            _, source, frame = late.popleft()
            for end in ends:
                if end is not source:
                    _send(end, frame)


def _send(end: socket.socket, frame: bytes) -> None:
    try:
        end.send(frame)
    except OSError:  # a port that is down loses it, as a wire does
        return


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
