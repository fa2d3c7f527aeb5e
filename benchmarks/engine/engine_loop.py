"""Engine core: what one step of the loop costs, by the number of sequences that generate."""

import numpy as np

from benchmarks.engine.in_memory_core import InMemoryCore, engine_config
from benchmarks.report import Budget, Figure
from engine_core.messages import GenerateJob, SamplingParams
from server.demo import GENERATOR_NAME, demo_models
from server.models.model_setup import EngineOptions
from workers.contract.messages import DecodeStep, GenerateOutput, StepInput

_STEP_US, _ROW_US = 150, 2
_ROWS = (1, 16, 64, 128, 256, 512, 1024)
_FITTED = 256
_TURNS = 300
_PROMPT = 32
_BLOCKS_A_ROW = 64


def measure() -> list[Figure]:
    """An iteration's median time by number of rows, its parts, and the line through the times."""
    times: dict[int, float] = {}
    early: dict[int, float] = {}
    figures: list[Figure] = []
    for rows in _ROWS:
        core = _generating(rows)
        for _ in range(_TURNS):
            core.iterate()
        core.close()
        times[rows] = core.stopwatch.median("iteration")
        early[rows] = sum(map(core.stopwatch.median, ("schedule", "build", "submit")))
        budget = Budget(_STEP_US + _ROW_US * rows)
        name = f"a step, rows: {rows:,}"
        figures.append(Figure(name, times[rows], "µs", budget, _parts(core)))
    fitted = [rows for rows in _ROWS if rows <= _FITTED]
    slope, base = np.polyfit(fitted, [times[rows] for rows in fitted], 1)
    before, _ = np.polyfit(fitted, [early[rows] for rows in fitted], 1)
    line = f"the line through 1 to {_FITTED} rows"
    return [
        Figure("of each step", float(base), "µs", Budget(_STEP_US), line),
        Figure("of each row", float(slope), "µs", Budget(_ROW_US), line),
        Figure(
            "of it until the step is out", float(before), "µs", note="the GPU may wait for this"
        ),
        *figures,
        Figure("to take a request in", _admission(), "µs", note="16 at once, 32 ids each"),
    ]


def _generating(rows: int) -> InMemoryCore:
    """A core in which `rows` sequences generate, a job each. Not all fill a block at once."""
    core = _core(rows)
    for row in range(rows):
        core.put(_job(row, _PROMPT + row % 16))
    while (step := core.newest_step) is None or _count(step.query_lens) != rows or _prompts(step):
        core.iterate()
    core.stopwatch.forget()
    return core


def _admission() -> float:
    """µs of the iteration in which 16 requests arrive and are scheduled, for each of them."""
    core = _core(16)
    for row in range(16):
        core.put(_job(row, _PROMPT))
    core.iterate()
    core.close()
    return core.stopwatch.total("iteration") / 16


def _core(max_running: int) -> InMemoryCore:
    options = EngineOptions(max_running=max_running, max_step_tokens=8192)
    config = engine_config(demo_models()[GENERATOR_NAME], options)
    tokens = np.full(max_running, 7, np.int32).tobytes()

    def answer(step: DecodeStep) -> GenerateOutput:
        return GenerateOutput(step.step, tokens=tokens[: 4 * step.sample.count(1)])

    return InMemoryCore(config, max_running * _BLOCKS_A_ROW, answer)


def _job(number: int, prompt_len: int) -> GenerateJob:
    # Different first tokens: no prompt is another's prefix.
    ids = np.full(prompt_len, number, np.int32).tobytes()
    return GenerateJob(number, params=SamplingParams(ignore_eos=True), ids=[ids])


def _count(array: bytes) -> int:
    return len(array) // 4


def _prompts(step: StepInput) -> bool:
    return len(step.tokens) > len(step.query_lens)


def _parts(core: InMemoryCore) -> str:
    parts = ("schedule", "build", "submit", "update", "send")
    times = {part: core.stopwatch.median(part) for part in parts}
    times["rest"] = core.stopwatch.median("iteration") - sum(times.values())
    return ", ".join(f"{part} {time:.0f}" for part, time in times.items())
