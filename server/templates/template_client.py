"""The process that renders one model's template, as its API process holds it, kept alive."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path

from engine_core.client.pending_jobs import Outcome
from engine_core.loop.fair_queue import FairQueue
from engine_core.messages import KeyShare
from engine_core.refusal import RefusalError
from server.event_loop import lasting_task
from server.templates import protocol
from server.templates.template_files import (
    MissingChatTemplateError,
    NoChatTemplateError,
    read_chat_template,
)
from server.templates.template_process import ProcessEndedError, TemplateProcess

_RENDER_S = protocol.CPU_SECONDS + 5.0

# An idle process that hangs is noticed within their sum.
_PING_EVERY_S = 3.0
_PING_S = 4.0
_PING = protocol.frame(None)

# Failures are counted from 0 again after a process that lived this long.
_STEADY_S = 10.0
# After this many failures in a row conversations are refused, until a process has started.
_MAX_FAILURES = 3
# Between two starts: none after the first failure, then about double with each in a row.
_FIRST_DELAY_S = 0.25
_MAX_DELAY_S = 5.0
_MOST_DOUBLINGS = 10

# Repeated, because it is lost on a process that has not begun to render.
_INTERRUPT_EVERY_S = 0.05

_log = logging.getLogger(__name__)


class _PendingRender:
    """A conversation that waits for its prompt. `answer` is cancelled when the client leaves."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.answer: Outcome[protocol.Answer] = Outcome()


class TemplateClient:
    """The process of a template, started again whenever it ends.

    A task owns it and sends it one conversation at a time; API keys take turns. The task reads
    every answer, wanted or not, so that no request gets another's.
    """

    def __init__(self, model: str, folder: Path) -> None:
        """Reads the template. A model without a working one is served all the same."""
        self._model = model
        self._queue: FairQueue[_PendingRender] = FairQueue()
        self._current: _PendingRender | None = None
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._process: TemplateProcess | None = None
        self._is_up = False
        self._has_compiled = False
        self._failures = 0  # in a row
        self._last_end = ""
        self.found = protocol.FoundFormat()
        """The format of the model's turns, once the template has been compiled."""
        self._template: protocol.ChatTemplate | NoChatTemplateError
        try:
            self._template = read_chat_template(folder)
        except NoChatTemplateError as error:
            self._template = error

    @property
    def template(self) -> protocol.ChatTemplate:
        """The template. Raises RefusalError, naming `model`, if there is none that works."""
        if isinstance(self._template, NoChatTemplateError):
            raise self._no_template(self._template)
        return self._template

    @property
    def is_missing(self) -> bool:
        """True if the model has no template, not even one that does not work."""
        return isinstance(self._template, MissingChatTemplateError)

    def start(self) -> None:
        """Start the process, if there is a template."""
        if isinstance(self._template, protocol.ChatTemplate):
            self._keeper = lasting_task(self._keep(), f"chat template of {self._model}")

    async def prompt_of(self, conversation: bytes, key: KeyShare) -> protocol.Rendered:
        """The prompt of a Conversation's frame. Cancelling gives it up. Raises RefusalError: no
        template, one that refuses the messages, no running process."""
        _ = self.template
        if self._keeper is None:
            self.start()
        if self._is_down:
            raise RefusalError("template_unavailable", self._outage)
        pending = _PendingRender(conversation)
        self._queue.put(pending, key)
        self._wake.set()
        try:
            outcome = await pending.answer
        except asyncio.CancelledError:
            self._queue.discard(pending, key)
            self._interrupt(pending)
            raise
        if isinstance(outcome, protocol.NotRendered):
            raise _refusal(outcome)
        assert isinstance(outcome, protocol.Rendered), "formats come only at the start"
        return outcome

    def check(self) -> None:
        """Raises RefusalError: `not_ready` until the template has been compiled once, `unhealthy`
        while no process can be started."""
        if isinstance(self._template, NoChatTemplateError):
            return
        if self._is_down:
            raise RefusalError("unhealthy", self._outage)
        if not self._has_compiled:
            raise RefusalError(
                "not_ready", f"model {self._model}: its chat template is being compiled"
            )

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._process is not None:
            await self._process.close()
        self._fail_all(RefusalError("draining", "the server is shutting down"))

    @property
    def _is_down(self) -> bool:
        return not self._is_up and self._failures >= _MAX_FAILURES

    @property
    def _outage(self) -> str:
        return f"the chat template of model {self._model} cannot be rendered now: {self._last_end}"

    def _no_template(self, reason: NoChatTemplateError) -> RefusalError:
        message = f"model {self._model} cannot chat: {reason}"
        return RefusalError("invalid_request", message, "model")

    async def _keep(self) -> None:
        """Run process after process, unless the template does not compile."""
        while isinstance(self._template, protocol.ChatTemplate):
            started = time.monotonic()
            failure = None
            try:
                await self._run(self._template)
            except ProcessEndedError as end:
                failure = end
            if time.monotonic() - started > _STEADY_S:
                self._failures = 0
            if failure is not None:
                self._failures += 1
                self._last_end = str(failure)
                await self._back_off()

    async def _run(self, template: protocol.ChatTemplate) -> None:
        """Run one process until a conversation ends it. Raises ProcessEndedError otherwise."""
        process = self._process = TemplateProcess()
        process.exit.add_done_callback(lambda _: self._wake.set())
        try:
            answer = await process.load(template)
            if isinstance(answer, protocol.NotRendered):
                self._give_up(template, answer.reason)
                return
            if self._is_down:
                _log.warning("the chat template of model %s is rendered again", self._model)
            if answer.reason and not self._has_compiled:
                _log.warning("model %s serves no tools: %s", self._model, answer.reason)
            self.found = answer
            self._is_up = self._has_compiled = True
            while await self._serves_next(process):
                pass
        finally:
            self._is_up = False
            await process.close()

    def _give_up(self, template: protocol.ChatTemplate, reason: str) -> None:
        self._template = NoChatTemplateError(f"its chat template ({template.file}): {reason}")
        refusal = self._no_template(self._template)
        _log.warning("%s", refusal.message)
        self._fail_all(refusal)

    async def _serves_next(self, process: TemplateProcess) -> bool:
        """Render one conversation, or ping the process. False if a conversation has ended it.
        Raises ProcessEndedError for another end."""
        pending = self._current = await self._next(process)
        if pending is None:
            await process.ask(_PING, _PING_S)
            return True
        try:
            answer, survives = await process.ask(pending.frame, _RENDER_S), True
        except ProcessEndedError as end:
            if not end.is_own_doing:
                # Rendering changes nothing: the next process may do it.
                raise
            answer, survives = protocol.NotRendered(str(end)), False
        self._current = None
        pending.answer.set(answer)
        return survives

    async def _next(self, process: TemplateProcess) -> _PendingRender | None:
        """The conversation that the last process left, or the next in turn. None if none comes for
        a while, or the process has ended."""
        if self._current is not None and not self._current.answer.done():
            return self._current
        if not self._queue and not process.exit.done():
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_EVERY_S):
                    await self._wake.wait()
        return self._queue.take() if self._queue else None

    def _interrupt(self, pending: _PendingRender) -> None:
        """Have the process give up `pending`, if it renders that."""
        if self._is_up and self._process is not None and self._current is pending:
            self._process.signal(protocol.INTERRUPT)
            loop = asyncio.get_running_loop()
            loop.call_later(_INTERRUPT_EVERY_S, self._interrupt, pending)

    async def _back_off(self) -> None:
        """Wait before the next start, for longer each time."""
        _log.warning("%s; starting it again", self._outage)
        if self._is_down:
            self._fail_all(RefusalError("template_unavailable", self._outage))
        doublings = min(self._failures - 1, _MOST_DOUBLINGS)
        await asyncio.sleep(min(_FIRST_DELAY_S * (2**doublings - 1), _MAX_DELAY_S))

    def _fail_all(self, error: RefusalError) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.answer.set(error)
        while self._queue:
            self._queue.take().answer.set(error)


def _refusal(answer: protocol.NotRendered) -> RefusalError:
    if answer.field:
        return RefusalError("invalid_request", f"{answer.field}: {answer.reason}", answer.field)
    message = f"messages: the model's chat template refuses them: {answer.reason}"
    return RefusalError("invalid_request", message, "messages")
