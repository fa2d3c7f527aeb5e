"""`python -m benchmarks.pipeline_model`: what a pipeline of GPUs would do, without any GPU."""

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.pipeline.loads import CASES, Load, load
from benchmarks.pipeline.simulation import Run, SimulatedEngine
from benchmarks.pipeline.step_times import BUILT_IN, StepTimes, read_step_times
from engine_core.schedulers.cost_model import CostModel
from engine_core.schedulers.decoder import DecoderScheduler
from server.bench.dummy_models import shape_folder
from server.bench.workloads import GenerationCase
from server.models.model_setup import EngineOptions, set_up_model
from server.models.model_source import SetupError
from server.settings.defaults import block_size, max_running, max_step_tokens
from server.settings.settings import Limits
from workers.contract.config import ExecutionConfig
from workers.contract.share import even_split

_KV_TOKENS_A_STAGE = 880_000
_HEADER = "case      stages  layers                result         bubbles   busiest  steps  depth"


def main() -> None:
    """Run every case for every number of stages; one line each, as soon as it is there."""
    options = _parser().parse_args()
    try:
        times = read_step_times(options.times)
        configs = [_config(options, stages) for stages in options.stages]
    except (OSError, msgspec.MsgspecError, SetupError) as error:
        sys.exit(f"{error}")
    print(f"{times.name}\n\n{_HEADER}")
    for case in (CASES[name] for name in options.case):
        for config in configs:
            layers = config.stage_layers or even_split(times.num_layers, config.num_stages)
            requests = load(case, options.scale)
            run = _simulated(options, config, times, layers, requests)
            print(" ".join(_line(case, layers, requests, run)), flush=True)


def _config(options: argparse.Namespace, stages: int) -> ExecutionConfig:
    """As on GPUs: the devices are never opened. Raises SetupError."""
    engine_options = EngineOptions(
        device="cpu",
        pipeline_stages=stages,
        stage_layers=options.stage_layers,
        steps_ahead=options.steps_ahead,
        load_format="dummy",
        max_running=options.max_running or max_running(stages, on_cpu=False),
        max_step_tokens=options.max_step_tokens,
        block_size=block_size(on_cpu=False),
    )
    shape = shape_folder("llama8b")
    served = set_up_model("llama8b", shape, engine_options, Limits(), prefix="")
    gpus = tuple(f"cuda:{stage}" for stage in range(stages))
    return msgspec.structs.replace(served.engine.execution, devices=gpus)


def _simulated(
    options: argparse.Namespace,
    config: ExecutionConfig,
    times: StepTimes,
    layers: tuple[int, ...],
    requests: list[Load],
) -> Run:
    tokens = options.kv_tokens or _KV_TOKENS_A_STAGE * len(layers)
    costs = None if options.learn else CostModel(times.coefficients(layers))
    scheduler = DecoderScheduler(config, tokens // config.block_size, cost_model=costs)
    engine = SimulatedEngine(scheduler, times, layers, jitter=options.jitter, learns=options.learn)
    return engine.run(requests)


def _line(
    case: GenerationCase, layers: tuple[int, ...], requests: list[Load], run: Run
) -> Iterator[str]:
    yield f"{case.name:9}"
    yield f"{len(layers):6}"
    yield f" {_written(layers):20}"
    yield f"{_result(case, requests, run.seconds):>15}"
    bubbles = run.bubbles()
    yield f"{max(bubbles):9.1%}"
    yield f"{min(bubbles):9.1%}"
    yield f"{len(run.steps):6}"
    yield f"{max(step.depth for step in run.steps):6}"


def _written(layers: tuple[int, ...]) -> str:
    """`4 x 8`, or `9, 2 x 8, 7`."""
    runs = [(count, len(list(run))) for count, run in groupby(layers)]
    return ", ".join(f"{size} x {count}" if size > 1 else f"{count}" for count, size in runs)


def _result(case: GenerationCase, requests: list[Load], seconds: float) -> str:
    match case.headlines[0]:
        case "seconds":
            return f"{seconds:.3f} s"
        case "output_tokens_per_s":
            return f"{sum(request.output for request in requests) / seconds:,.0f} tok/s"
        case _:
            return f"{len(requests) / seconds:,.1f} req/s"


def _parser() -> argparse.ArgumentParser:
    cases = "\n".join(f"  {case.name:10}{case.what}" for case in CASES.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline_model",
        usage="python -m benchmarks.pipeline_model [--stages P ...] [--case CASE ...] [options]",
        description="Predict what a pipeline of GPUs does: penstock's own scheduler over simulated "
        "stages, which\ntake the times that steps were measured to take. It needs no GPU.",
        epilog=f"cases:\n{cases}\n\n"
        "In the table, `bubbles` is the share of its time that the worst stage is idle: it shows\n"
        "how evenly the layers are divided. `busiest` is that share of the busiest stage, which\n"
        "sets the pace: it shows how well steps are scheduled. `depth`: the most steps in flight.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    stages, default = [1, 2, 4, 8, 16], ["long32k", "dec", "rand", "skew"]
    add("--stages", type=int, nargs="+", default=stages, metavar="P", help="(default: 1 2 4 8 16)")
    add(
        "--case",
        nargs="+",
        choices=CASES,
        default=default,
        metavar="CASE",
        help="(default: all but `one`)",
    )
    add("--scale", type=float, default=1.0, metavar="S", help="a part of each case (default: 1)")
    _add_engine_options(parser.add_argument_group("the engine, as in `penstock serve`"))
    _add_stage_options(parser.add_argument_group("the stages"))
    return parser


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    layers = "layers of each stage, for one number of stages (default: even)"
    group.add_argument("--stage-layers", type=_layers, default=(), metavar="N,N,...", help=layers)
    group.add_argument("--steps-ahead", type=int, choices=(0, 1), default=1, help="(default: 1)")
    running = f"(default: {max_running(on_cpu=False):,} a stage)"
    group.add_argument("--max-running", type=int, metavar="N", help=running)
    tokens = max_step_tokens(cached=True, on_cpu=False)
    given = f"(default: {tokens:,})"
    group.add_argument("--max-step-tokens", type=int, default=tokens, metavar="N", help=given)


def _add_stage_options(group: argparse._ArgumentGroup) -> None:
    form = f"the default is benchmarks/pipeline/{BUILT_IN.name}"
    group.add_argument(
        "--times",
        type=Path,
        default=BUILT_IN,
        metavar="FILE",
        help=f"measured times as JSON: {form}, bare kernels on an H200",
    )
    kv_tokens = f"tokens that the KV cache holds (default: {_KV_TOKENS_A_STAGE:,} a stage)"
    group.add_argument("--kv-tokens", type=int, metavar="N", help=kv_tokens)
    jitter = "each time is off by chance, by about this share of it (default: 0)"
    group.add_argument("--jitter", type=float, default=0.0, metavar="SHARE", help=jitter)
    learn = "the scheduler learns what steps cost, as in the daemon; by default it knows"
    group.add_argument("--learn", action="store_true", help=learn)


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
