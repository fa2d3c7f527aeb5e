"""Worker: what one decode step costs from message to message, and how much of that is the model.

`python -m benchmarks.worker.worker_step` prints the figures as JSON; `measure` runs it as a process
of its own, in the environment of a worker.
"""

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.engine.in_memory_core import InMemoryCore, engine_config
from benchmarks.engine.stopwatch import Stopwatch
from benchmarks.processes import pipes, running_module
from benchmarks.report import Budget, Figure
from engine_core.config import EngineConfig
from engine_core.messages import GenerateJob, SamplingParams
from server.daemon.parts import engine_parts
from server.demo import GENERATOR_NAME, demo_models
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits
from workers.attention.backend_selection import select_backends
from workers.contract.config import WorkerConfig
from workers.contract.messages import DecodeStep, FromWorker, GenerateOutput, ToWorker
from workers.contract.process import exit_with_parent
from workers.contract.share import shares_of
from workers.contract.token_sampling import GREEDY, TokenSampling
from workers.device.choices import Choices
from workers.links.engine_link import EngineLink, StepInbox
from workers.links.transport import Links
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import attention_needs
from workers.stage.stage import ResultSender, Stage
from workers.weights.loader import load_model

_OUTSIDE_US = 350
_ROWS = (1, 16, 64)
_PROMPT, _STEPS = 64, 200
_MAX_BLOCKS = 64 * 64
# With several threads, whatever else runs on the machine would show in every step.
_OPTIONS = EngineOptions(device="cpu", threads=1)
_SAMPLING = {
    "greedy": SamplingParams(sampling=GREEDY, ignore_eos=True),
    "sampled": SamplingParams(
        sampling=TokenSampling(temperature=0.8, top_k=50, top_p=0.9), seed=1, ignore_eos=True
    ),
}


def measure() -> list[Figure]:
    """For each number of rows: the step outside the model's math, and the whole step."""
    model = set_up_model("model", demo_models()[GENERATOR_NAME], _OPTIONS, Limits(), prefix="")
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        parts = engine_parts([model], Path(folder))
    (worker,) = [part for part in parts if part.role == "worker"]
    with running_module(
        "benchmarks.worker.worker_step", environment=worker.environment, piped=True
    ) as process:
        _, stdout = pipes(process)
        return msgspec.json.decode(stdout.read(), type=list[Figure])


def main() -> None:
    """The process."""
    exit_with_parent()
    torch.set_num_threads(1)
    worker = _Worker(engine_config(demo_models()[GENERATOR_NAME], _OPTIONS))
    with torch.inference_mode():
        figures = [
            figure
            for kind, params in _SAMPLING.items()
            for rows in _ROWS
            for figure in _step_times(worker, rows, kind, params)
        ]
    print(msgspec.json.encode(figures).decode())


class _MemoryLink(EngineLink):
    """Keeps the stage's last message, encoded as for its engine core."""

    def __init__(self) -> None:
        self.sent = b""
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromWorker) -> None:
        self.sent = self._encoder.encode(message)


class _Worker:
    """A real stage in this process, between a decoder and an encoder of messages."""

    def __init__(self, engine: EngineConfig) -> None:
        execution = engine.execution
        config = WorkerConfig(execution=execution, stage=0)
        (share,) = shares_of([execution.model.num_layers])
        loaded = load_model(config, share)
        backends = select_backends(
            execution.attention_backend, attention_needs(execution), Choices()
        )
        self.engine = engine
        self.stopwatch = Stopwatch()
        timed = self.stopwatch.wrap
        loaded.model.compute_logits = timed("head", loaded.model.compute_logits)
        for backend in backends:
            backend.plan_paged = timed("plan", backend.plan_paged)
        runner = DecodeRunner(config, loaded, backends, _MAX_BLOCKS)
        runner.prepare = timed("prepare", runner.prepare)
        runner.forward = timed("forward", runner.forward)
        runner.run_head = timed("run_head", runner.run_head)
        runner.warm_up()
        self._link = _MemoryLink()
        results = ResultSender(self._link, stage=0)
        self._stage = Stage(runner, Links(), results, StepInbox(self._link))
        self._decoder = msgspec.msgpack.Decoder(ToWorker)
        self._encoder = msgspec.msgpack.Encoder()
        self._serve = timed("step", self._serve)

    def answer(self, step: DecodeStep) -> GenerateOutput:
        """The output of one step; its times are one lap."""
        output = self._serve(self._encoder.encode(step))
        self.stopwatch.lap()
        return msgspec.msgpack.decode(output, type=GenerateOutput)

    def _serve(self, frame: bytes) -> bytes:
        message = self._decoder.decode(frame)
        assert isinstance(message, DecodeStep)
        self._stage.run(message)
        return self._link.sent


def _step_times(
    worker: _Worker, rows: int, kind: str, params: SamplingParams
) -> tuple[Figure, Figure]:
    core = InMemoryCore(worker.engine, _MAX_BLOCKS, worker.answer)
    for row in range(rows):
        ids = np.random.default_rng(row).integers(8, 4000, _PROMPT, np.int32)
        core.put(GenerateJob(row, params=params, ids=[ids.tobytes()]))
    while (step := core.newest_step) is None or step.sample.count(1) < rows:
        core.iterate()
    for _ in range(2):
        core.iterate()
    worker.stopwatch.forget()
    for _ in range(_STEPS):
        core.iterate()
    core.close()
    return _figures(f"{kind}, rows: {rows}", worker.stopwatch)


def _figures(name: str, stopwatch: Stopwatch) -> tuple[Figure, Figure]:
    whole, head = stopwatch.median("step"), stopwatch.median("head")
    layers = stopwatch.median("forward") - stopwatch.median("plan")
    outside = whole - layers - head
    parts = {part: stopwatch.median(part) for part in ("prepare", "plan")}
    parts["sample"] = stopwatch.median("run_head") - head
    parts["rest"] = outside - sum(parts.values())
    note = ", ".join(f"{part} {time:.0f}" for part, time in parts.items())
    return (
        Figure(f"{name}, outside the model", outside, "µs", Budget(_OUTSIDE_US), note),
        Figure(f"{name}, whole step", whole / 1e3, "ms", note="1 thread"),
    )


if __name__ == "__main__":
    main()
