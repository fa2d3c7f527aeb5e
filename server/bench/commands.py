"""Runs cases on what a start gives for them; prints and saves the report of each."""

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop

from engine_core.refusal import RefusalError
from server.bench.cases.dummy_models import shape_folder
from server.bench.cases.workloads import Case, Shape
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
from server.bench.results.machine import this_machine
from server.bench.results.measurement import BenchError, Figures
from server.bench.results.targets import read_targets
from server.daemon.daemon import START_ERRORS
from server.settings.settings import ServedModel
from workers.contract.config import ExecutionConfig

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
    json: Path | None
    plot: Path | None


class Runner(Protocol):
    """An engine or a server that is ready. `model` is None where it was started elsewhere."""

    model: ServedModel | None

    async def warm_up(self, case: Any) -> None:
        """Run requests like those of `case`, so that its first run is like any other.

        Raises BenchError, RefusalError.
        """
        ...

    async def measure(self, case: Any, run: int) -> Figures:
        """The figures of run number `run`. Raises BenchError, RefusalError."""
        ...


Start = Callable[[Path, Any], AbstractAsyncContextManager[Runner]]
"""Starts a runner for the cases of one shape, given its folder and the first of them."""


def bench(options: BenchOptions, cases: Sequence[Case], start: Start) -> int:
    """Measure `cases` on what `start` gives; the exit code.

    Raises BenchError if a case is not measured, or there is no place for what is asked for.
    """
    command = _Command(options)
    command.check_outputs()
    print(command.report.machine.header(), flush=True)
    uvloop.run(command.measure(cases, start))
    report = command.report
    print("\n" + table(report.cases, report.vllm_version), end="", flush=True)
    if options.plot is not None:
        plot(report, options.plot)
    if lost := [case.case for case in report.cases if case.error is not None]:
        raise BenchError(f"not measured: {', '.join(lost)}")
    return 0


class _Command:
    """One call of the command. Its report grows with each case, and is saved each time: it may be
    stopped at any time."""

    def __init__(self, options: BenchOptions) -> None:
        self._options, self._targets = options, read_targets()
        command = shlex.join(["penstock", *sys.argv[1:]])
        self.report = Report(command, this_machine(), self._targets.vllm_version)

    def check_outputs(self) -> None:
        """Find at the start what would fail at the end. Raises BenchError."""
        try:
            if (picture := self._options.plot) is not None:
                if self._targets.vllm_version is None:
                    raise BenchError(
                        "--plot compares with benchmarks/targets.toml of a source checkout"
                    )
                drawing_library()
                picture.touch()
            self._save()
        except OSError as error:
            raise BenchError(str(error)) from None

    def _save(self) -> None:
        """Raises OSError."""
        if self._options.json is not None:
            text = msgspec.json.format(msgspec.json.encode(self.report))
            self._options.json.write_bytes(text + b"\n")

    async def measure(self, cases: Sequence[Case], start: Start) -> None:
        """Report each case as soon as it is over, with one start for all cases of a shape."""
        by_shape: defaultdict[Shape, list[Case]] = defaultdict(list)
        for case in cases:
            by_shape[case.shape].append(case)
        for shape, group in by_shape.items():
            folder, over = self._options.shape or shape_folder(shape), 0
            try:
                async with start(folder, group[0]) as runner:
                    for case in group:
                        self._add(await self._measured(case, runner))
                        over += 1
            except (BenchError, RefusalError, *START_ERRORS) as error:
                for case in group[over:]:
                    self._add(failed(case.scaled(self._options.scale), error))

    def _add(self, case: CaseReport) -> None:
        self.report.cases.append(case)
        print(details(case), flush=True)
        self._save()

    async def _measured(self, case: Case, runner: Runner) -> CaseReport:
        part = case.scaled(self._options.scale)
        try:
            await runner.warm_up(part)
            runs = [await runner.measure(part, run) for run in range(self._options.repeat)]
        except (BenchError, RefusalError) as error:
            return failed(part, error)
        engine = runner.model.execution if runner.model is not None else None
        return measured(
            part,
            runs,
            targets=self._targets,
            notes=self._differences(case, part, engine),
            engine={name: getattr(engine, name) for name in _SETTINGS} if engine else {},
        )

    def _differences(self, case: Case, part: Case, engine: ExecutionConfig | None) -> list[str]:
        """How a run differs from the workload that its targets are for."""
        found: list[str] = []
        if part.count < case.count:
            found.append(f"a quick look: {part.count} instead of {case.count}")
        if self._options.shape is not None:
            found.append(f"on shape {self._options.shape.name} instead of {case.shape}")
        if engine is not None and engine.device_type == "cpu":
            found.append("on a CPU")
        elif not any(_GPU in gpu for gpu in self.report.machine.gpus):
            found.append(f"not on an {_GPU}")
        if engine is not None and engine.dtype != "bfloat16":
            found.append(f"in {engine.dtype}")
        return found
