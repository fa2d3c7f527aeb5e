"""`python -m benchmarks.worker.experts_touched --shape NAME`: how many experts rows choose.

A floor (`benchmarks.floors`) reads as many experts as rows that choose evenly and alone touch. Here
a stage with dummy weights runs whole cases in this process, under a real scheduler, and counts: a
router that prefers some would read less, and be faster by accident. Rows that pad a captured step
count, as what they choose is read.
"""

import argparse
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.engine.in_memory_core import InMemoryCore, engine_config
from engine_core.messages import GenerateJob
from server.bench.dummy_models import parse_shape
from server.bench.offline import sampling_params
from server.bench.workloads import GENERATION, GenerationCase, offline_prompts
from server.models.model_setup import EngineOptions
from workers.attention.backend_selection import select_backends
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.experts import ExpertsConfig
from workers.contract.messages import DecodeStep, StepOutput
from workers.contract.share import shares_of
from workers.device.choices import Choices
from workers.layers.experts import Choice, Experts
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import attention_needs
from workers.weights.loader import load_model

_CASES = {case.name: case for case in GENERATION}


class Touched(NamedTuple):
    """Experts that a layer's rows chose in steps of one kind, as a mean over layers and steps, and
    the expected number for rows that choose evenly and alone."""

    kind: str
    steps: int
    tokens: float
    experts: float
    even: float


def main() -> None:
    """Print a line for each case and kind of step."""
    prog = "python -m benchmarks.worker.experts_touched"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument(
        "--shape",
        required=True,
        type=parse_shape,
        metavar="NAME|FOLDER",
        help="of a model with experts",
    )
    parser.add_argument(
        "--case", nargs="+", choices=_CASES, default=["one", "dec"], help="(default: one dec)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="(default: cuda)")
    parser.add_argument("--quantization", choices=["fp8"], help="of the dummy weights")
    given = parser.parse_args()
    options = EngineOptions(
        device=given.device, load_format="dummy", quantization=given.quantization
    )
    cases = [_CASES[name] for name in given.case]
    print(f"{'case':9}{'steps of':16}{'steps':>7}{'tokens':>9}{'experts':>9}{'even':>8}")
    for case, touched in experts_touched(given.shape, options, cases):
        for each in touched:
            numbers = f"{each.tokens:9.1f}{each.experts:9.2f}{each.even:8.2f}"
            print(f"{case:9}{each.kind:16}{each.steps:7}{numbers}", flush=True)


def experts_touched(
    shape: Path, options: EngineOptions, cases: Sequence[GenerationCase]
) -> Iterator[tuple[str, list[Touched]]]:
    """Run the cases to their ends. Raises SystemExit for a model without experts."""
    engine = engine_config(shape, options)
    execution = engine.execution
    if (experts := execution.model.experts) is None:
        raise SystemExit(f"{shape.name}: a model without experts")
    longest = max(case.prompt_tokens + case.outputs for case in cases)
    rows = min(execution.max_running, max(case.count for case in cases))
    blocks = rows * -(-longest // execution.block_size) + 1
    with torch.inference_mode(), _counting(experts.count, execution.devices[0]) as tally:
        runner = _runner(execution, blocks)
        for case in cases:
            steps = _Steps(runner, tally)
            core = InMemoryCore(engine, blocks, steps.answer)
            _finish(core, case)
            core.close()
            yield case.name, list(steps.summary(experts))


def _runner(execution: ExecutionConfig, blocks: int) -> DecodeRunner:
    config = WorkerConfig(execution=execution, stage=0)
    name, needs = execution.attention_backend, attention_needs(execution)
    backends = select_backends(name, needs, Choices())
    (share,) = shares_of([execution.model.num_layers])
    runner = DecodeRunner(config, load_model(config, share), backends, blocks)
    runner.warm_up()
    return runner


@contextmanager
def _counting(count: int, device: str) -> Generator[torch.Tensor]:
    """Layers add the experts which they touch, and one, to the tensor that this gives, int64[2].
    Captured steps do so, too."""
    tally, add_to = torch.zeros(2, dtype=torch.int64, device=device), Experts.add_to

    def counted(
        self: Experts, residual: torch.Tensor, rows: torch.Tensor, choice: Choice
    ) -> torch.Tensor:
        seen = torch.zeros(count, dtype=torch.int64, device=device)
        seen.scatter_(0, choice.experts.flatten().long(), 1)
        tally.add_(torch.stack([seen.sum(), seen.new_ones(())]))
        return add_to(self, residual, rows, choice)

    Experts.add_to = counted
    try:
        yield tally
    finally:
        Experts.add_to = add_to


class _Steps:
    """Runs a stage's steps, and keeps what each has touched."""

    def __init__(self, runner: DecodeRunner, tally: torch.Tensor) -> None:
        self._runner, self._tally = runner, tally
        self._counts: dict[str, list[tuple[int, float]]] = {}

    def answer(self, message: DecodeStep) -> StepOutput:
        """The step's output. The device has come to its end."""
        self._tally.zero_()
        prepared = self._runner.prepare(message)
        result = self._runner.run_head(prepared, self._runner.forward(prepared, None)).to_host()
        touched, layers = self._tally.tolist()
        lens = np.frombuffer(message.query_lens, np.int32)
        kind = "one token a row" if lens.max() == 1 else "prompts, too"
        self._counts.setdefault(kind, []).append((int(lens.sum()), touched / layers))
        return result.to_output(message.step)

    def summary(self, experts: ExpertsConfig) -> Iterator[Touched]:
        """A line for each kind of step."""
        share = experts.active / experts.count
        for kind, counts in self._counts.items():
            tokens, touched = np.array(counts, np.float64).T
            even = experts.count * (1 - (1 - share) ** tokens)
            yield Touched(kind, len(counts), *(float(of.mean()) for of in (tokens, touched, even)))


def _finish(core: InMemoryCore, case: GenerationCase) -> None:
    params = sampling_params(case, case.outputs)
    for number, prompt in enumerate(offline_prompts(case)):
        core.put(GenerateJob(number, params=params, ids=[prompt]))
    while core.newest_step is None:
        core.iterate()
    while core.newest_step is not None:
        core.iterate()


if __name__ == "__main__":
    main()
