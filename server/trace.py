"""`penstock trace`: the steps of a running daemon as a picture of its pipeline.

The file is a trace in Chrome's format, for https://ui.perfetto.dev and chrome://tracing.
Each engine is a process, each stage a track, each part of a step a slice.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import argparse
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from engine_core.client.trace_client import NoAnswerError, trace_engines
from engine_core.messages import MAX_TRACE_SECONDS, TracedStep
from server.daemon.run import RunningDaemon, running_daemons
from server.errors import CommandError
from server.settings.setting_types import Written, parse
from server.settings.settings import ServedModel
from workers.contract.messages import StepTimes

_COLOURS = {
    "prefill": "thread_state_running",
    "decode": "rail_response",
    "mixed": "rail_load",
    "transfer": "thread_state_iowait",
    "waiting": "bad",
    "idle": "terrible",
}
"""By the name of a slice: chrome://tracing names its colours. Perfetto ignores them, and gives each
name of a slice a colour of its own."""

_Seconds = Annotated[
    float,
    Meta(gt=0, le=MAX_TRACE_SECONDS),
    Written(r"[0-9]*\.?[0-9]+", float, f"not above 0 and at most {MAX_TRACE_SECONDS:g}"),
]
_ARGUMENTS = ("step", "rows", "tokens", "prompt_tokens", "context_tokens")


_EXAMPLES = """\
examples:
  penstock trace
      the next five seconds of the daemon that runs here, to trace.json
  penstock trace --seconds 1 --model chat -o chat.json
      one second of one model
Open the file in https://ui.perfetto.dev or chrome://tracing.
"""


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write what each stage of a running daemon does in the next seconds: its part of each\n"
        "step, its transfers, and where it waits."
    )
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "--seconds",
        type=partial(parse, _Seconds),
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


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    del parser
    models = _models(_daemon(options.pid), options.model)
    with _opened(options.output) as output:
        engines = [engine for model in models for engine in model.engines]
        endpoints = {each.execution.engine_name: each.client_endpoint for each in engines}
        try:
            steps = trace_engines(endpoints, options.seconds)
        except NoAnswerError as error:
            raise CommandError(f"{error}: it may still be starting") from None
        devices = {each.execution.engine_name: each.execution.devices for each in engines}
        trace = chrome_trace(steps, devices)
        output.truncate(0)
        output.write(trace)
    counts = ", ".join(f"{len(own):,} steps of {name}" for name, own in steps.items())
    print(f"wrote {options.output}: {counts}", file=sys.stderr)
    return 0


def _daemon(pid: int | None) -> RunningDaemon:
    daemons = running_daemons()
    found = [daemon for daemon in daemons if pid in (None, daemon.pid)]
    if len(found) == 1:
        return found[0]
    pids = ", ".join(str(daemon.pid) for daemon in daemons) or "none, with this TMPDIR"
    raise CommandError(f"name one daemon of yours with --pid; those that run here: {pids}")


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


def chrome_trace(
    steps: Mapping[str, Sequence[TracedStep]], devices: Mapping[str, Sequence[str]]
) -> bytes:
    """The trace as JSON, of `steps` by engine and the `devices` of each engine's stages. Times are
    in microseconds of the host's monotonic clock."""
    events: list[dict[str, Any]] = []
    for process, (engine, of_engine) in enumerate(steps.items(), 1):
        events.append(_named("process_name", process, 0, engine))
        for stage, device in enumerate(devices[engine]):
            events.append(_named("thread_name", process, stage, f"stage {stage} ({device})"))
            events += _track(process, stage, of_engine)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def kind_of(step: TracedStep) -> str:
    """`prefill`, `decode`, or `mixed` for a step of both."""
    if not step.prompt_tokens:
        return "decode"
    return "prefill" if step.prompt_tokens == step.tokens else "mixed"


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _track(process: int, stage: int, steps: Sequence[TracedStep]) -> Iterator[dict[str, Any]]:
    end = 0
    for step in steps:
        for name, begun, ended in _slices(step, step.times[stage], end):
            # A step may seem to begin before the end of the one before: see `StepTimes`.
            start, end = max(begun, end), max(ended, end)
            yield {
                "ph": "X",
                "name": name,
                "cat": "step",
                "pid": process,
                "tid": stage,
                "ts": start,
                "dur": end - start,
                "cname": _COLOURS[name],
                "args": {name: getattr(step, name) for name in _ARGUMENTS},
            }


def _slices(step: TracedStep, times: StepTimes, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of what a stage did for one step, one after another. It was idle since
    the `end` of its step before (0 if this is its first), unless there were no requests then."""
    if end and step.continued and times.start_us > end:
        yield "idle", end, times.start_us
    arrived = times.start_us + times.wait_us
    if times.wait_us:
        yield "waiting", times.start_us, arrived
    computed = arrived + times.busy_us
    yield kind_of(step), arrived, computed
    if times.transfer_us:
        yield "transfer", computed, times.end_us
