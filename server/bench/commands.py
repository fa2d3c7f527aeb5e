"""The two commands: run the cases, print and save each report; exit code 1 if a case failed."""

import shlex
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import uvloop

from engine_core.refusal import RefusalError
from server.bench.cases.dummy_models import shape_folder
from server.bench.cases.workloads import Case, HTTPCase, OfflineCase, Shape
from server.bench.load.http_client import Address
from server.bench.load.http_runner import running_server, started_server
from server.bench.offline import offline_runner
from server.bench.report import (
    CaseReport,
    Report,
    details,
    drawing_library,
    failed,
    measured,
    plot,
    table,
)
from server.bench.results.machine import Machine, this_machine
from server.bench.results.measurement import BenchError, Figures
from server.bench.results.targets import Targets, read_targets
from server.daemon.daemon import START_ERRORS
from server.models.model_setup import EngineOptions
from server.settings.server_config import ServedModel, api_key_from
from workers.contract.config import ExecutionConfig

CaseT = TypeVar("CaseT", bound=Case)
CaseT_contra = TypeVar("CaseT_contra", bound=Case, contravariant=True)

_GPU = "H200"
_SETTINGS = (
    *("devices", "stage_layers", "steps_ahead", "transport", "dtype", "attention_backend"),
    *("max_model_len", "max_running", "max_step_tokens", "block_size", "kv_cache_bytes"),
    "disable_cascade_attn",
)


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What both commands have flags for: `scale` is the fraction of each case that is run, `shape`
    a folder to use in place of the case's own."""

    scale: float
    repeat: int
    shape: Path | None
    engine: EngineOptions
    json: Path | None
    plot: Path | None


class Runner(Protocol[CaseT_contra]):
    """An engine or a server that is ready. `model` is None where it was started elsewhere."""

    model: ServedModel | None

    async def warm_up(self, case: CaseT_contra) -> None:
        """Run requests like those of `case`, so that its first run is like any other.

        Raises BenchError, RefusalError.
        """
        ...

    async def measure(self, case: CaseT_contra, run: int) -> Figures:
        """The figures of run number `run`. Raises BenchError, RefusalError."""
        ...


Start = Callable[[Path, CaseT], AbstractAsyncContextManager[Runner[CaseT]]]
"""Starts a runner for the cases of one shape, given its folder and the first of them."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How the cases are run, on what, and what they are compared with."""

    options: BenchOptions
    machine: Machine
    targets: Targets | None


def bench_offline(
    options: BenchOptions, cases: Sequence[OfflineCase], *, prefix_caching: bool
) -> int:
    """Measure engines of our own without HTTP; the exit code."""
    return _bench(options, cases, partial(offline_runner, options.engine, prefix_caching))


def bench_started(
    options: BenchOptions,
    cases: Sequence[HTTPCase],
    api_workers: int,
    clients: int,
    tokenizer: Path | None,
) -> int:
    """Measure daemons of our own over HTTP; the exit code."""
    start = partial(started_server, options.engine, api_workers, clients, tokenizer)
    return _bench(options, cases, start)


def bench_running(
    options: BenchOptions,
    cases: Sequence[HTTPCase],
    url: str,
    model: str | None,
    clients: int,
    tokenizer: Path | None,
) -> int:
    """Measure a server that was started elsewhere over HTTP; the exit code."""
    try:
        address = Address.of(url, api_key_from())
    except BenchError as error:
        return _fail(error)
    return _bench(options, cases, partial(running_server, address, model, clients, tokenizer))


def _bench(options: BenchOptions, cases: Sequence[CaseT], start: Start[CaseT]) -> int:
    plan = _Plan(options=options, machine=this_machine(), targets=read_targets())
    version = plan.targets.vllm_version if plan.targets is not None else None
    report = Report(shlex.join(["penstock", *sys.argv[1:]]), plan.machine, version)
    try:
        _check_outputs(plan)
        _save(report, options.json)
    except (BenchError, OSError) as error:
        return _fail(error)
    print(plan.machine.header(), flush=True)
    uvloop.run(_collect(_reports(cases, plan, start), report, options.json))
    print("\n" + table(report.cases, version), end="", flush=True)
    if options.plot is not None:
        plot(report, options.plot)
    lost = [case.case for case in report.cases if case.error is not None]
    return _fail(BenchError(f"not measured: {', '.join(lost)}")) if lost else 0


def _check_outputs(plan: _Plan) -> None:
    """Find at the start what would fail at the end. Raises BenchError, OSError."""
    if plan.options.plot is None:
        return
    if plan.targets is None:
        raise BenchError("--plot compares with benchmarks/targets.toml of a source checkout")
    drawing_library()
    plan.options.plot.touch()


def _save(report: Report, file: Path | None) -> None:
    """Raises OSError."""
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _fail(error: Exception) -> int:
    print(f"penstock: error: {error}", file=sys.stderr)
    return 1


async def _collect(coming: AsyncGenerator[CaseReport], report: Report, file: Path | None) -> None:
    """Add, print and save each case as it comes: the command may be stopped at any time."""
    async with aclosing(coming):
        async for case in coming:
            report.cases.append(case)
            print(details(case), flush=True)
            _save(report, file)


async def _reports(
    cases: Sequence[CaseT], plan: _Plan, start: Start[CaseT]
) -> AsyncGenerator[CaseReport]:
    """The report of each case as soon as it is over, with one start for all cases of a shape."""
    by_shape: defaultdict[Shape, list[CaseT]] = defaultdict(list)
    for case in cases:
        by_shape[case.shape].append(case)
    for shape, group in by_shape.items():
        over = 0
        try:
            async with start(plan.options.shape or shape_folder(shape), group[0]) as runner:
                for case in group:
                    yield await _report(case, plan, runner)
                    over += 1
        except (BenchError, RefusalError, *START_ERRORS) as error:
            for case in group[over:]:
                yield failed(case.scaled(plan.options.scale), error)


async def _report(case: CaseT, plan: _Plan, runner: Runner[CaseT]) -> CaseReport:
    part = case.scaled(plan.options.scale)
    try:
        await runner.warm_up(part)
        runs = [await runner.measure(part, run) for run in range(plan.options.repeat)]
    except (BenchError, RefusalError) as error:
        return failed(part, error)
    engine = runner.model.execution if runner.model is not None else None
    return measured(
        part,
        runs,
        targets=plan.targets,
        stages=engine.num_stages if engine is not None else 1,
        stage_layers=engine.stage_layers if engine is not None else (),
        notes=_differences(case, part, plan, engine),
        engine={name: getattr(engine, name) for name in _SETTINGS} if engine is not None else {},
    )


def _differences(case: Case, part: Case, plan: _Plan, engine: ExecutionConfig | None) -> list[str]:
    """How a run differs from the workload that its targets are for."""
    found: list[str] = []
    if part.count < case.count:
        found.append(f"a quick look: {part.count} instead of {case.count}")
    if plan.options.shape is not None:
        found.append(f"on shape {plan.options.shape.name} instead of {case.shape}")
    if engine is not None and engine.device_type == "cpu":
        found.append("on a CPU")
    elif not any(_GPU in gpu for gpu in plan.machine.gpus):
        found.append(f"not on an {_GPU}")
    if engine is not None and engine.dtype != "bfloat16":
        found.append(f"in {engine.dtype}")
    return found
