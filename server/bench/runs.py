"""From cases to their reports: all of a shape in one start, each as often as asked for."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from engine_core.client.pending_jobs import EngineError
from engine_core.config import EngineConfig
from server.bench.cases import Case, Figures, Shape
from server.bench.dummy_models import shape_folder
from server.bench.errors import BenchError
from server.bench.machine import Machine
from server.bench.report import CaseReport, failed, measured
from server.daemon.daemon import START_ERRORS
from server.settings.server_config import ServedModel

CaseT = TypeVar("CaseT", bound=Case)
CaseT_contra = TypeVar("CaseT_contra", bound=Case, contravariant=True)

_GPU = "H200"
_SETTINGS = (
    *("device", "dtype", "attention_backend", "num_stages", "max_model_len", "max_running"),
    *("max_step_tokens", "block_size", "kv_cache_bytes"),
)


class Runner(Protocol[CaseT_contra]):
    """Something that runs, ready to be asked. `model` is None where it was started elsewhere."""

    model: ServedModel | None

    async def warm_up(self, case: CaseT_contra) -> None:
        """Ask what makes the first run of `case` like any other. Raises BenchError, EngineError."""
        ...

    async def measure(self, case: CaseT_contra, run: int) -> Figures:
        """The figures of run number `run`. Raises BenchError, EngineError."""
        ...


Start = Callable[[Path, CaseT], AbstractAsyncContextManager[Runner[CaseT]]]
"""Starts what the cases of one shape, whose folder is given with the first of them, run on."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How cases are run: `scale` is the fraction of each, `shape` a folder in place of theirs."""

    machine: Machine
    scale: float = 1.0
    repeat: int = 1
    shape: Path | None = None


async def reports(
    cases: Sequence[CaseT], plan: Plan, start: Start[CaseT]
) -> AsyncGenerator[CaseReport]:
    """The report of each case as soon as it is over, shape by shape; what fails is in it."""
    by_shape: defaultdict[Shape, list[CaseT]] = defaultdict(list)
    for case in cases:
        by_shape[case.shape].append(case)
    for shape, group in by_shape.items():
        over = 0
        try:
            async with start(plan.shape or shape_folder(shape), group[0]) as runner:
                for case in group:
                    yield await _report(case, plan, runner)
                    over += 1
        except (BenchError, EngineError, *START_ERRORS) as error:
            for case in group[over:]:
                yield failed(case.scaled(plan.scale), error)


async def _report(case: CaseT, plan: Plan, runner: Runner[CaseT]) -> CaseReport:
    part = case.scaled(plan.scale)
    try:
        await runner.warm_up(part)
        runs = [await runner.measure(part, run) for run in range(plan.repeat)]
    except (BenchError, EngineError) as error:
        return failed(part, error)
    engine = runner.model.engine if runner.model is not None else None
    return measured(
        part,
        runs,
        gpus=engine.num_stages if engine is not None else 1,
        notes=_differences(case, part, plan, engine),
        engine={name: getattr(engine, name) for name in _SETTINGS} if engine is not None else {},
    )


def _differences(case: Case, part: Case, plan: Plan, engine: EngineConfig | None) -> list[str]:
    """In what a run is not the workload that its bounds are about."""
    found: list[str] = []
    if part.count < case.count:
        found.append(f"a quick look: {part.count} instead of {case.count}")
    if plan.shape is not None:
        found.append(f"on shape {plan.shape.name} instead of {case.shape}")
    if engine is not None and engine.device == "cpu":
        found.append("on a CPU")
    elif not any(_GPU in gpu for gpu in plan.machine.gpus):
        found.append(f"not on an {_GPU}")
    if engine is not None and engine.dtype != "bfloat16":
        found.append(f"in {engine.dtype}")
    return found
