"""Engine core: what a text to embed costs from its arrival to its vector, without the model."""

import numpy as np

from benchmarks.engine.in_memory_core import InMemoryCore, engine_config
from benchmarks.report import Budget, Figure
from engine_core.messages import EncodeJob
from server.demo import EMBEDDER_NAME, demo_models
from server.models.model_setup import EngineOptions
from workers.contract.messages import EmbedOutput, StepInput

_TEXTS, _TEXT_TOKENS = 16_384, 32
_SEQUENCE_US = 5
_REPEATS = 5


def measure() -> list[Figure]:
    """µs a sequence, for one job and for many at once, in small and in large steps."""
    return [_figure(jobs, step_tokens) for step_tokens in (2048, 16_384) for jobs in (1, 64)]


def _figure(jobs: int, step_tokens: int) -> Figure:
    options = EngineOptions(max_step_tokens=step_tokens)
    config = engine_config(demo_models()[EMBEDDER_NAME], options)
    vectors = bytes(step_tokens // _TEXT_TOKENS * config.execution.model.vector_size * 4)

    def answer(step: StepInput) -> EmbedOutput:
        size = len(step.query_lens) * config.execution.model.vector_size
        return EmbedOutput(step.step, vectors=vectors[:size])

    core = InMemoryCore(config, 0, answer)
    times = [_embed_all(core, jobs, repeat) for repeat in range(_REPEATS)]
    core.close()
    middle = sorted(times, key=lambda parts: parts["iteration"])[_REPEATS // 2]
    name = f"{jobs} job{'s' * (jobs > 1)}, steps of {step_tokens:,} tokens"
    return Figure(name, middle.pop("iteration"), "µs a text", Budget(_SEQUENCE_US), _list(middle))


def _embed_all(core: InMemoryCore, jobs: int, repeat: int) -> dict[str, float]:
    """Put all texts in and iterate until none is left: µs a text of the loop and of its parts."""
    ids = np.arange(_TEXT_TOKENS, dtype=np.int32).tobytes()
    for job in range(jobs):
        core.put(EncodeJob(repeat * jobs + job, ids=[ids] * (_TEXTS // jobs)))
    core.stopwatch.forget()
    core.iterate()
    while core.newest_step is not None:
        core.iterate()
    parts = {part: core.stopwatch.total(part) / _TEXTS for part in ("iteration", *core.PARTS)}
    return parts | {"rest": 2 * parts["iteration"] - sum(parts.values())}


def _list(parts: dict[str, float]) -> str:
    return ", ".join(f"{part} {time:.2f}" for part, time in parts.items())
