"""A template's process as the API process holds it: started, sent questions, ended.

`template_main.py` is what runs in it.
"""

import asyncio
import signal
import sys
from collections.abc import Callable

import msgspec

from server.child_process import ChildProcess
from server.settings.settings import child_environment
from server.templates.interruption import INTERRUPT
from server.templates.protocol import CPU_SECONDS, LENGTH_BYTES, WALL_SECONDS, Answer, frame_size

_COMMAND = (sys.executable, "-P", "-m", "server.templates.template_main")
_ANSWER = msgspec.json.Decoder(Answer)
_LIMITS = {
    -signal.SIGPROF: f"it takes more than {CPU_SECONDS:g} s",
    -signal.SIGALRM: f"it takes more than {WALL_SECONDS:g} s by the clock",
}
_FAULTS = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL)


class ProcessEndedError(Exception):
    """The process has ended; the message says why: "its process was killed ...".

    `status` is None for one that could not be started, or that was killed because it hung.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_own_doing(self) -> bool:
        """Whether its question has ended it, by a limit or a crash, and not another process."""
        status = self.status
        return status is not None and (status >= 0 or status in _LIMITS or status in _FAULTS)


class ProcessHandle:
    """A running process of a template, with one question at a time on its socket."""

    def __init__(self, on_exit: Callable[[], object]) -> None:
        """Start it; `on_exit` is called when it ends. Raises ProcessEndedError if it cannot be
        started."""
        try:
            self._child = ChildProcess(_COMMAND, child_environment(), answers=True)
        except OSError as error:
            raise ProcessEndedError(f"its process cannot be started: {error.strerror}") from None
        self._child.exit.add_done_callback(lambda _: on_exit())

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return not self._child.exit.done()

    async def ask(self, question: bytes, seconds: float) -> Answer:
        """The answer to a frame. Raises ProcessEndedError, also for a process that has not answered
        after `seconds`: it is killed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._child.socket, question)
                size = frame_size(await self._receive(LENGTH_BYTES))
                return _ANSWER.decode(await self._receive(size))
        except TimeoutError:
            await self.close()
            reason = f"its process hung for {seconds:g} s, and was killed"
            raise ProcessEndedError(reason) from None
        except (EOFError, ConnectionError):
            await self.close()
            status = self._child.exit.result()
            reason = _LIMITS.get(status) or f"its process {self._child.end()}"
            raise ProcessEndedError(reason, status) from None

    def interrupt(self) -> None:
        """Have it give up the conversation that it renders, if it has come to rendering it: then
        `ask` has a NotRendered soon. Only for a process that has compiled its template."""
        self._child.signal(INTERRUPT)

    async def close(self) -> None:
        """Kill it, unless it has ended, and wait until it is gone. Idempotent."""
        self._child.socket.close()
        self._child.signal(signal.SIGKILL)
        await asyncio.wait([self._child.exit])

    async def _receive(self, size: int) -> bytearray:
        """So many bytes. Raises EOFError, ConnectionError."""
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = await loop.sock_recv_into(self._child.socket, rest)
            if count == 0:
                raise EOFError
            rest = rest[count:]
        return data
