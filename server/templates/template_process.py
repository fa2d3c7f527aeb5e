"""A template's process, `template_main.py`, as its parent speaks with it."""

import asyncio
import signal
import sys

import msgspec

from server.event_loop import ChildProcess
from server.settings.settings import child_environment
from server.templates import protocol

_COMMAND = (sys.executable, "-P", "-m", "server.templates.template_main")
_ANSWER: msgspec.json.Decoder[protocol.Answer] = msgspec.json.Decoder(protocol.Answer)
_LIMITS = {
    -signal.SIGPROF: f"it takes more than {protocol.CPU_SECONDS:g} s",
    -signal.SIGALRM: f"it takes more than {protocol.WALL_SECONDS:g} s by the clock",
}
_FAULTS = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL)

# To start and compile the template, beside all of the daemon.
_START_S = 30.0


class ProcessEndedError(Exception):
    """The process has ended, for the reason in the message. `status` is None if it could not be
    started, or was killed because it hung."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_own_doing(self) -> bool:
        """True if the process died of its question, by a limit or a crash."""
        status = self.status
        return status is not None and (status >= 0 or status in _LIMITS or status in _FAULTS)


async def loaded(template: protocol.ChatTemplate) -> protocol.FoundFormat | protocol.NotRendered:
    """The findings of a process of its own about a template. Raises ProcessEndedError."""
    process = TemplateProcess()
    try:
        return await process.load(template)
    finally:
        await process.close()


class TemplateProcess(ChildProcess):
    """A running process of a template, with one question at a time on its socket."""

    def __init__(self) -> None:
        """Start it. Raises ProcessEndedError."""
        try:
            super().__init__(_COMMAND, child_environment(), answers=True)
        except OSError as error:
            raise ProcessEndedError(f"its process cannot be started: {error.strerror}") from None

    async def load(
        self, template: protocol.ChatTemplate
    ) -> protocol.FoundFormat | protocol.NotRendered:
        """Have it compile the template. Raises ProcessEndedError, unless the template took too much
        time."""
        try:
            answer = await self.ask(protocol.frame(template), _START_S)
        except ProcessEndedError as end:
            if end.status != -signal.SIGPROF:
                raise
            return protocol.NotRendered(str(end))
        assert not isinstance(answer, protocol.Rendered), "only conversations have prompts"
        return answer

    async def ask(self, question: bytes, seconds: float) -> protocol.Answer:
        """The answer to a frame. Raises ProcessEndedError. A process that has not answered after
        `seconds` is killed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self.socket, question)
                size = protocol.frame_size(await self._receive(protocol.LENGTH_BYTES))
                return _ANSWER.decode(await self._receive(size))
        except TimeoutError:
            await self.close()
            reason = f"its process hung for {seconds:g} s, and was killed"
            raise ProcessEndedError(reason) from None
        except (EOFError, ConnectionError):
            await self.close()
            status = self.exit.result()
            reason = _LIMITS.get(status) or f"its process {self.end()}"
            raise ProcessEndedError(reason, status) from None

    async def close(self) -> None:
        """Kill it and wait until it is gone. Idempotent."""
        self.socket.close()
        self.signal(signal.SIGKILL)
        await asyncio.wait([self.exit])

    async def _receive(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = await loop.sock_recv_into(self.socket, rest)
            if count == 0:
                raise EOFError
            rest = rest[count:]
        return data
