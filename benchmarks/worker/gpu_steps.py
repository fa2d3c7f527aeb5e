"""Worker on CUDA: how long the GPU takes for a step of an 8B Llama's shape, by attention backend.

The worker alone, with dummy weights, keys and values. A step takes as long in a server, unless the
GPU is at its power limit there: here rounds are short, with pauses between them.
"""

import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.engine.in_memory_core import engine_config
from benchmarks.report import Figure, NotMeasuredError
from server.bench.dummy_models import shape_folder
from server.models.model_setup import EngineOptions
from workers.attention.backend_selection import AttentionBackendError, select_backends
from workers.contract.config import WorkerConfig
from workers.contract.messages import DecodeStep, SlotInit
from workers.contract.share import shares_of
from workers.contract.token_sampling import GREEDY
from workers.device.choices import Choices
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import attention_needs
from workers.weights.loader import LoadedModel, load_model

_BACKENDS = ("triton", "flash_attn")
_BLOCK_SIZE, _BLOCKS = 128, 1200
_OPTIONS = EngineOptions(
    device="cuda",
    load_format="dummy",
    max_running=256,
    max_model_len=32768,
    block_size=_BLOCK_SIZE,
)
_ROUNDS, _STEPS, _PAUSE_SECONDS = 5, 10, 0.2


class Rows(NamedTuple):
    """Rows with equal contexts; the last `queries` tokens of each are in the step."""

    count: int
    context: int
    queries: int = 1


_CASES: dict[str, list[Rows]] = {
    "1 row of 300": [Rows(1, 300)],
    "8 rows of 600": [Rows(8, 600)],
    "12 rows of 600": [Rows(12, 600)],
    "16 rows of 600": [Rows(16, 600)],
    "32 rows of 600": [Rows(32, 600)],
    "256 rows of 384": [Rows(256, 384)],
    "63 rows of 600, one of 32,000": [Rows(63, 600), Rows(1, 32000)],
    "11 rows of 600, a prompt of 32": [Rows(11, 600), Rows(1, 32, 32)],
    "11 rows of 600, a prompt of 512": [Rows(11, 600), Rows(1, 512, 512)],
    "11 rows of 600, 512 tokens over 3,584": [Rows(11, 600), Rows(1, 4096, 512)],
    "30 rows of 600, four prompts of 100": [Rows(30, 600), Rows(4, 100, 100)],
    "a prompt of 8,192": [Rows(1, 8192, 8192)],
}


def measure() -> list[Figure]:
    """A figure for each backend that is installed and each kind of step."""
    if not torch.cuda.is_available():
        raise NotMeasuredError("needs a CUDA device")
    execution = engine_config(shape_folder("llama8b"), _OPTIONS).execution
    config = WorkerConfig(execution=execution, stage=0)
    with torch.inference_mode():
        (share,) = shares_of([execution.model.num_layers])
        loaded = load_model(config, share)
        return [figure for name in _BACKENDS for figure in _steps_of_backend(config, loaded, name)]


def _steps_of_backend(config: WorkerConfig, loaded: LoadedModel, name: str) -> list[Figure]:
    try:
        backends = select_backends(name, attention_needs(config.execution), Choices())
    except AttentionBackendError as error:
        print(f"{name}: not measured: {error}", file=sys.stderr)
        return []
    runner = DecodeRunner(config, loaded, backends, _BLOCKS)
    runner.warm_up()
    for layer in runner.kv_cache.layers.values():
        layer.keys.normal_()
        layer.values.normal_()
    return [_figure(runner, f"{name}, {case}", rows) for case, rows in _CASES.items()]


def _figure(runner: DecodeRunner, name: str, rows: Sequence[Rows]) -> Figure:
    """The median of some rounds of steps, each queued while the one before runs."""
    _run(runner, _step_of(rows, first=True))
    step = _step_of(rows, first=False)
    times: list[float] = []
    launched: list[float] = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        time.sleep(_PAUSE_SECONDS)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        _run(runner, step)
        launched.append(1000 * (time.perf_counter() - began))
        start.record()
        for _ in range(_STEPS):
            _run(runner, step)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / _STEPS)
    return Figure(name, median(times), "ms", note=f"CPU: {median(launched):.2f} ms")


def _run(runner: DecodeRunner, message: DecodeStep) -> None:
    step = runner.prepare(message)
    runner.run_head(step, runner.forward(step, None)).to_host()


def _step_of(rows: Sequence[Rows], *, first: bool) -> DecodeStep:
    """The step; the `first` one brings the rows' blocks and parameters. All rows are sampled."""
    each = [Rows(1, row.context, row.queries) for row in rows for _ in range(row.count)]
    updates: list[tuple[int, int, int]] = []
    tokens: list[int] = []
    for slot, row in enumerate(each):
        held = range(-(-row.context // _BLOCK_SIZE))
        updates += [(slot, index, len(updates) + index) for index in held]
        tokens += [-1] if row.queries == 1 else range(8, 8 + row.queries)
    inits = [
        SlotInit(slot=slot, prompt_len=row.context, seed=0, sampling=GREEDY)
        for slot, row in enumerate(each)
    ]
    return DecodeStep(
        step=0,
        tokens=_int32(tokens),
        query_lens=_int32([row.queries for row in each]),
        slots=_int32(range(len(each))),
        starts=_int32([row.context - row.queries for row in each]),
        sample=b"\1" * len(each),
        block_updates=_int32(updates) if first else b"",
        inits=inits if first else [],
    )


def _int32(values: Sequence[object]) -> bytes:
    return np.array(values, np.int32).tobytes()
