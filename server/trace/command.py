"""`penstock trace`: what it asks of a running daemon, and the file that it writes."""

import argparse
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engine_core.client.trace_client import NoAnswerError, trace_engines
from engine_core.messages import MAX_TRACE_SECONDS
from server.command_error import CommandError
from server.daemon.running_daemons import RunningDaemon, running_daemons
from server.settings.server_config import ServedModel
from server.trace.chrome_trace import chrome_trace

_EXAMPLES = """\
examples:
  penstock trace
      the next five seconds of the daemon that runs here, to trace.json
  penstock trace --seconds 1 --model chat -o chat.json
      one second of one model
Open the file in https://ui.perfetto.dev or chrome://tracing.
"""


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Give `penstock trace` its flags."""
    parser.description = (
        "Write what each stage of a running daemon does in the next seconds: its part of each\n"
        "step, its transfers, and where it waits."
    )
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=5.0,
        metavar="N",
        help=f"for how long, at most {MAX_TRACE_SECONDS:g} (default: 5)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("trace.json"),
        metavar="FILE",
        help="the file to write (default: trace.json)",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="a model to trace, by any of its names; may be repeated (default: all)",
    )
    parser.add_argument(
        "--pid",
        type=int,
        help="the daemon's process id, where several of yours run (default: the only one)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: not a number of seconds") from None
    if not 0 < seconds <= MAX_TRACE_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}: above 0 and at most {MAX_TRACE_SECONDS:g}")
    return seconds


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    del parser
    models = _models(_daemon(options.pid), options.model)
    with _opened(options.output) as output:
        endpoints = {model.name: model.engine.client_endpoint for model in models}
        try:
            steps = trace_engines(endpoints, options.seconds)
        except NoAnswerError as error:
            raise CommandError(f"{error}: it may still be starting") from None
        trace = chrome_trace(steps, {model.name: model.execution.devices for model in models})
        output.truncate(0)
        output.write(trace)
    counts = ", ".join(f"{len(of_model):,} steps of {name}" for name, of_model in steps.items())
    print(f"wrote {options.output}: {counts}", file=sys.stderr)
    return 0


def _daemon(pid: int | None) -> RunningDaemon:
    daemons = running_daemons()
    found = [daemon for daemon in daemons if pid in (None, daemon.pid)]
    if len(found) == 1:
        return found[0]
    pids = ", ".join(str(daemon.pid) for daemon in daemons)
    if found:
        raise CommandError(f"several daemons run here; name one with --pid: {pids}")
    if daemons:
        raise CommandError(f"--pid {pid}: no daemon of yours; those that run here: {pids}")
    raise CommandError("no daemon of yours runs here (TMPDIR must be as the daemon has it)")


def _models(daemon: RunningDaemon, names: Sequence[str]) -> list[ServedModel]:
    models = daemon.models
    known = {name: model for model in models for name in (model.name, *model.aliases)}
    for name in names:
        if name not in known:
            raise CommandError(f"--model {name}: the daemon serves {', '.join(known)}")
    chosen = {known[name].name for name in names} or {model.name for model in models}
    return [model for model in models if model.name in chosen]


@contextmanager
def _opened(file: Path) -> Generator[BinaryIO]:
    """`file` as it is, to be written. Where there was none, none stays behind if the block fails.

    Raises CommandError if it cannot be opened, before anything is traced, or written.
    """
    is_new = not file.exists()
    try:
        with file.open("ab") as opened:
            yield opened
    except BaseException as error:
        if is_new:
            with suppress(OSError):
                file.unlink()
        if isinstance(error, OSError):
            raise CommandError(f"cannot write {file}: {error.strerror}") from None
        raise
