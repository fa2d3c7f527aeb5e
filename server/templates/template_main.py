"""The program of a template's process, `python -P -m server.templates.template_main`: frames in and
out. `process_handle.py` is its other side.

Templates are programs: one expression may run for ever or take all memory, and nothing inside
Python stops it. So the kernel does. A conversation that takes too long ends the process, by timers
of the processor's time and of the clock; memory is bounded as a whole; the process dies with its
parent. A conversation whose client has left is given up at the next step of the template.
"""

import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO

import msgspec
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from server.templates.interruption import Interruptible, RenderInterrupted
from server.templates.loaded_template import LoadedTemplate
from server.templates.messages.shaping import LeftOutError
from server.templates.parent_death import die_with_parent
from server.templates.protocol import (
    CPU_SECONDS,
    LENGTH_BYTES,
    WALL_SECONDS,
    Answer,
    ChatTemplate,
    NotRendered,
    Ping,
    Question,
    Rendered,
    frame,
    frame_size,
)

MEMORY_BYTES = 1 << 30
_MAX_REASON = 200


def main() -> None:
    """The process: its limits, and `_serve` within them."""
    die_with_parent()
    # Ctrl-C is for the daemon to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where the API process has gone there is nobody to answer, and nothing to say. If it had not
    # read an answer, the kernel says so with an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with suppress(ConnectionResetError):
        _serve(sys.stdin.buffer, sys.stdout.buffer)


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """A ChatTemplate first, then Questions, each of which gets its answer, until the API process
    has gone."""
    if not (first := _read(source)):
        return
    template = msgspec.json.decode(first, type=ChatTemplate)
    loaded: list[LoadedTemplate] = []
    interruptible = Interruptible()

    def loads() -> str:
        loaded.append(LoadedTemplate(template))
        return ""

    _answer(sink, interruptible, loads)
    decoder = msgspec.json.Decoder(Question)

    def rendered(body: bytes) -> str:
        question = decoder.decode(body)
        return "" if isinstance(question, Ping) else loaded[0].prompt(question)

    while body := _read(source):
        _answer(sink, interruptible, partial(rendered, body))


def _answer(sink: BinaryIO, interruptible: Interruptible, work: Callable[[], str]) -> None:
    _set_timers(cpu=CPU_SECONDS, wall=WALL_SECONDS)
    answer = frame(_outcome(interruptible, work))
    _set_timers(cpu=0, wall=0)
    sink.write(answer)
    sink.flush()


def _set_timers(*, cpu: float, wall: float) -> None:
    """SIGPROF or SIGALRM ends this process after so many seconds; 0 is never."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


def _outcome(interruptible: Interruptible, work: Callable[[], str]) -> Answer:
    field = ""
    try:
        with interruptible:
            text = work()
    except RenderInterrupted:
        reason = "nobody waits for it any more"
    except LeftOutError as error:
        field, reason = error.field, str(error)
    except TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except TemplateError as error:
        reason = error.message or type(error).__name__
    except MemoryError:
        reason = f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"
    except Exception as error:  # a template is a program, and may raise anything
        reason = f"{type(error).__name__}: {error}"
    else:
        return Rendered(text)
    return NotRendered(reason[:_MAX_REASON].encode(errors="replace").decode(), field)


def _read(source: BinaryIO) -> bytes:
    """A frame's body; empty once the API process has gone."""
    return source.read(frame_size(source.read(LENGTH_BYTES)))


if __name__ == "__main__":
    main()
