"""A template's process, `python -P -m server.templates.template_main`, frames in and out.
`template_client.py` is its other side.

Templates are programs: an expression may run for ever or take all memory, and only the kernel stops
it. Timers of processor time and of the clock end the process with its conversation. Its memory is
bounded, and it dies with its parent. A conversation whose client has left is given up at the next
step of the template.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import BinaryIO, Self

import msgspec
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from server.templates import protocol
from server.templates.loaded_template import UnfitFieldError
from server.templates.served_template import ServedTemplate

MEMORY_BYTES = 1 << 30
_MAX_REASON = 200
_PR_SET_PDEATHSIG = 1
_STDIN = 0


def main() -> None:
    """Set the limits of the process, and serve within them."""
    _die_with_parent()
    # Ctrl-C is for the daemon to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without the API process there is nobody to answer: end quietly, also with an unread answer.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with suppress(ConnectionResetError):
        _serve(sys.stdin.buffer, sys.stdout.buffer)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # A parent that has ended before sends no signal, but has closed our input.
    poll = select.poll()
    poll.register(_STDIN, 0)
    if poll.poll(0):
        sys.exit(1)


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer a ChatTemplate, then Questions, until the API process has gone."""
    loaded: list[ServedTemplate] = []
    decoder: msgspec.json.Decoder[protocol.Question] = msgspec.json.Decoder(protocol.Question)

    def answer_to(body: bytes) -> protocol.Answer:
        if not loaded:
            loaded.append(ServedTemplate(msgspec.json.decode(body, type=protocol.ChatTemplate)))
            return loaded[0].found
        question = decoder.decode(body)
        return protocol.Rendered("") if question is None else loaded[0].rendered(question)

    interruptible = _Interruptible()
    while body := source.read(protocol.frame_size(source.read(protocol.LENGTH_BYTES))):
        _set_timers(cpu=protocol.CPU_SECONDS, wall=protocol.WALL_SECONDS)
        answer = protocol.frame(_outcome(interruptible, partial(answer_to, body)))
        _set_timers(cpu=0, wall=0)
        sink.write(answer)
        sink.flush()


def _set_timers(*, cpu: float, wall: float) -> None:
    """Have SIGPROF or SIGALRM end this process after these seconds, 0 for never."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


class _RenderInterrupted(BaseException):
    """The API process no longer wants the prompt. No Exception, so that Jinja does not catch it."""


class _Interruptible:
    """INTERRUPT raises _RenderInterrupted within the block, and is ignored outside: senders repeat
    it."""

    def __init__(self) -> None:
        self._inside = False
        signal.signal(protocol.INTERRUPT, self._on_signal)

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            raise _RenderInterrupted


def _outcome(interruptible: _Interruptible, work: Callable[[], protocol.Answer]) -> protocol.Answer:
    field = ""
    try:
        with interruptible:
            return work()
    except _RenderInterrupted:
        reason = "nobody waits for it any more"
    except UnfitFieldError as error:
        field, reason = error.field, str(error)
    except TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except TemplateError as error:
        reason = error.message or type(error).__name__
    except MemoryError:
        reason = f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"
    except Exception as error:  # a template is a program, and may raise anything
        reason = f"{type(error).__name__}: {error}"
    return protocol.NotRendered(reason[:_MAX_REASON].encode(errors="replace").decode(), field)


if __name__ == "__main__":
    main()
