"""The two commands: run, tell, keep, plot; exit code 1 if anything could not be measured."""

import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from server.bench.cases import HTTPCase, OfflineCase
from server.bench.errors import BenchError
from server.bench.http_client import Address
from server.bench.http_runner import running_server, started_server
from server.bench.machine import this_machine
from server.bench.offline import offline_runner
from server.bench.plots import drawing_library, plot
from server.bench.report import CaseReport, Report, details, table
from server.bench.runs import Plan, reports
from server.models.model_setup import EngineOptions
from server.settings.server_config import api_key_from


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What both commands are asked for. `cases` are names that exist."""

    scale: float
    repeat: int
    shape: Path | None
    engine: EngineOptions
    json: Path | None
    plot: Path | None


def bench_offline(wish: Wish, cases: Sequence[OfflineCase]) -> int:
    """Measure on engines of our own; the exit code."""
    start = partial(offline_runner, wish.engine)
    return _bench(wish, lambda plan: reports(cases, plan, start))


def bench_started(
    wish: Wish, cases: Sequence[HTTPCase], api_workers: int, tokenizer: Path | None
) -> int:
    """Measure over HTTP on daemons of our own; the exit code."""
    start = partial(started_server, wish.engine, api_workers, tokenizer)
    return _bench(wish, lambda plan: reports(cases, plan, start))


def bench_running(
    wish: Wish, cases: Sequence[HTTPCase], url: str, model: str | None, tokenizer: Path | None
) -> int:
    """Measure over HTTP on a server that was started elsewhere; the exit code."""
    try:
        address = Address.of(url, api_key_from())
    except BenchError as error:
        return _refused(error)
    start = partial(running_server, address, model, tokenizer)
    return _bench(wish, lambda plan: reports(cases, plan, start))


def _bench(wish: Wish, begin: Callable[[Plan], AsyncGenerator[CaseReport]]) -> int:
    machine = this_machine()
    plan = Plan(machine=machine, scale=wish.scale, repeat=wish.repeat, shape=wish.shape)
    report = Report(shlex.join(["penstock", *sys.argv[1:]]), machine)
    try:
        # What would fail at the end is found at the start.
        if wish.plot is not None:
            drawing_library()
            wish.plot.touch()
        _keep(report, wish.json)
    except (BenchError, OSError) as error:
        return _refused(error)
    print(machine.header(), flush=True)
    uvloop.run(_gather(begin(plan), report, wish.json))
    print("\n" + table(report.cases), end="", flush=True)
    if wish.plot is not None:
        plot(report, wish.plot)
    lost = [case.case for case in report.cases if case.error is not None]
    return _refused(BenchError(f"not measured: {', '.join(lost)}")) if lost else 0


async def _gather(coming: AsyncGenerator[CaseReport], report: Report, file: Path | None) -> None:
    """Add each case to the report as it comes, tell it and keep it: a run may be cut short."""
    async with aclosing(coming):
        async for case in coming:
            report.cases.append(case)
            print(details(case), flush=True)
            _keep(report, file)


def _keep(report: Report, file: Path | None) -> None:
    """Raises OSError."""
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _refused(error: Exception) -> int:
    print(f"penstock: error: {error}", file=sys.stderr)
    return 1
