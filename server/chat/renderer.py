"""From conversations to prompts, by the template of one model, in a process of its own."""

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

import msgspec

from server.chat.files import NoChatTemplateError, read_chat_template
from server.chat.protocol import (
    LENGTH_BYTES,
    SECONDS,
    Answer,
    ChatTemplate,
    Conversation,
    Refused,
    frame,
    frame_size,
)
from server.configuration.config import child_environment
from server.errors import APIError

_log = logging.getLogger(__name__)
_COMMAND = (sys.executable, "-P", "-m", "server.chat.process")
_ANSWER = msgspec.json.Decoder(Answer)


class ChatRenderer:
    """One template's process: started with the server, and again when a conversation ends it."""

    def __init__(self, model: str, folder: Path) -> None:
        """Reads the template. A model without one that works is served all the same."""
        self._model = model
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._template: ChatTemplate | None = None
        self._why_not = ""
        try:
            self._template = read_chat_template(folder)
        except NoChatTemplateError as error:
            self._why_not = str(error)

    @property
    def template(self) -> ChatTemplate:
        """Raises APIError, naming `model`, where there is none that can be used."""
        if self._template is None:
            message = f"model {self._model} cannot chat: {self._why_not}"
            raise APIError("invalid_request", message, "model")
        return self._template

    async def start(self) -> None:
        """Compile the template, if there is one: what is wrong with it is told to the log."""
        if self._template is None:
            return
        answer = await self._begin(self._template)
        if isinstance(answer, Refused):
            self._why_not = f"its chat template ({self._template.file}): {answer.reason}"
            _log.warning("model %s cannot chat: %s", self._model, self._why_not)
            self._template = None
            await self.close()

    async def render(self, conversation: Conversation) -> str:
        """The prompt. Raises APIError: no template, or one that refuses these messages."""
        _ = self.template
        # Shielded: an answer that nobody took from the pipe would be the next one's.
        answer = await asyncio.shield(self._ask(conversation))
        if isinstance(answer, Refused):
            message = f"messages: the model's chat template refuses them: {answer.reason}"
            raise APIError("invalid_request", message, "messages")
        return answer.text

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def _ask(self, conversation: Conversation) -> Answer:
        async with self._turn:
            if self._process is None:
                answer = await self._begin(self.template)
                if isinstance(answer, Refused):
                    return answer
            return await self._exchange(conversation)

    async def _begin(self, template: ChatTemplate) -> Answer:
        self._process = await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=PIPE, stdout=PIPE, env=child_environment()
        )
        return await self._exchange(template)

    async def _exchange(self, message: ChatTemplate | Conversation) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(message))
            await process.stdin.drain()
            size = frame_size(await process.stdout.readexactly(LENGTH_BYTES))
            return _ANSWER.decode(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            # Not killed: it is ending by itself, and a kill may take its status from who waits.
            self._process = None  # the next conversation gets a new one
            process.stdin.close()
            return Refused(_epitaph(await process.wait()))


def _epitaph(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"it takes more than {SECONDS:g} s"
    return f"its process ended with status {status}"
