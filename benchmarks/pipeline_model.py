"""`python -m benchmarks.pipeline_model`: what a pipeline of GPUs would do, without any GPU."""

import argparse
import math
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.pipeline.gpus import GPUS
from benchmarks.pipeline.loads import CASES, Load, load
from benchmarks.pipeline.plans import Plan, check_room, plan
from benchmarks.pipeline.simulation import Run, SimulatedEngine
from benchmarks.pipeline.step_times import BUILT_IN, StepTimes, read_step_times
from engine_core.schedulers.cost_model import CostModel
from engine_core.schedulers.decoder import DecoderScheduler
from server.bench.dummy_models import parse_shape, shape_names
from server.bench.workloads import GenerationCase
from server.models.model_source import SetupError
from server.settings.defaults import max_running, max_step_tokens
from workers.contract.model_config import ModelConfigError

_HEADER = (
    "case      pipelines  layers of each     KV tokens          result  first token      next"
    "  bubbles  busiest  steps  depth"
)


def main() -> None:
    """Run every case for every number of stages; one line each, as soon as it is there."""
    options = _parser().parse_args()
    cases = [CASES[name] for name in options.case]
    try:
        times = read_step_times(options.times)
        plans = [plan(options, times, stages) for stages in options.stages]
        for each in plans:
            check_room(each, cases)
    except (OSError, msgspec.MsgspecError, SetupError, ModelConfigError) as error:
        sys.exit(f"{error}")
    print(f"{times.name}{_difference(options, times)}\n\n{_HEADER}")
    for case in cases:
        for each in plans:
            requests = load(case, options.scale, options.rate / each.count)
            run = _simulated(options, each, requests[: math.ceil(len(requests) / each.count)])
            print(" ".join(_line(case, each, requests, run)), flush=True)


def _simulated(options: argparse.Namespace, plan: Plan, requests: list[Load]) -> Run:
    costs = None if options.learn else CostModel(plan.pipeline.coefficients())
    blocks = plan.kv_tokens // plan.config.block_size
    scheduler = DecoderScheduler(plan.config, blocks, cost_model=costs)
    engine = SimulatedEngine(scheduler, plan.pipeline, jitter=options.jitter, learns=options.learn)
    return engine.run(requests)


def _difference(options: argparse.Namespace, times: StepTimes) -> str:
    """Say for what the times are scaled, if they were measured with something else."""
    shape = options.shape.name if options.shape else times.shape
    gpus = options.gpu or [times.gpu]
    if shape == times.shape and set(gpus) == {times.gpu}:
        return ""
    return f"\nscaled, not measured: {shape} on {' and '.join(gpus)}"


def _line(case: GenerationCase, plan: Plan, requests: list[Load], run: Run) -> Iterator[str]:
    stages = plan.config.num_stages
    yield f"{case.name:9}"
    yield f"{f'{plan.count} x {stages}':9}"
    yield f" {_written(plan.config.stage_layers):16}"
    yield f"{plan.kv_tokens:11,}"
    yield f"{_result(case, requests, run.seconds):>15}"
    yield f"{run.first_token():10.3f} s"
    yield f"{run.next_token() * 1e3:6.1f} ms"
    bubbles = run.bubbles()
    yield f"{max(bubbles):8.1%}"
    yield f"{min(bubbles):8.1%}"
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
        "`4 x 2` are 4 pipelines of 2 stages, or 4 stages of 2 layers. `KV tokens` are those of\n"
        "one pipeline. `first token` is the median time from a request's arrival, `next` the\n"
        "mean time from one token to another. `bubbles` is the share of its time that the worst\n"
        "stage is idle: it shows how evenly the layers are divided. `busiest` is that share of\n"
        "the busiest stage, which sets the pace: it shows how well steps are scheduled. `depth`:\n"
        "the most steps in flight.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    stages, default = [1, 2, 4, 8, 16], ["long32k", "dec", "rand", "skew"]
    add(
        "--stages",
        type=_count,
        nargs="+",
        default=stages,
        metavar="P",
        help="(default: 1 2 4 8 16)",
    )
    add(
        "--case",
        nargs="+",
        choices=CASES,
        default=default,
        metavar="CASE",
        help="(default: all but `one`)",
    )
    add("--scale", type=float, default=1.0, metavar="S", help="a part of each case (default: 1)")
    rate = "requests that arrive a second, by chance (default: all are there at the start)"
    add("--rate", type=_above_zero, default=math.inf, metavar="R", help=rate)
    _add_engine_options(parser.add_argument_group("the engine, as in `penstock serve`"))
    _add_stage_options(parser.add_argument_group("the stages"))
    _add_host_options(parser.add_argument_group("the hosts"))
    return parser


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    layers = "layers of each stage, for one number of stages (default: as the daemon does)"
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
    shapes = f"model: {', '.join(shape_names())}, or the folder of a config.json"
    group.add_argument("--shape", type=parse_shape, metavar="SHAPE", help=shapes)
    kv_tokens = "tokens that the KV cache holds (default: for what memory is left)"
    group.add_argument("--kv-tokens", type=int, metavar="N", help=kv_tokens)
    jitter = "each time is off by chance, by about this share of it (default: 0)"
    group.add_argument("--jitter", type=float, default=0.0, metavar="SHARE", help=jitter)
    learn = "the scheduler learns what steps cost, as in the daemon; by default it knows"
    group.add_argument("--learn", action="store_true", help=learn)


def _add_host_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    gpus = "GPUs in all: as many pipelines as they make share the requests (default: one)"
    add("--gpus", type=_count, metavar="N", help=gpus)
    add("--hosts", type=_count, default=1, metavar="N", help="hosts of these GPUs (default: 1)")
    kinds = "the GPUs of each host, or one kind for all (default: as measured)"
    add("--gpu", nargs="+", choices=GPUS, metavar="GPU", help=f"{kinds}: {', '.join(GPUS)}")
    link = "Gb/s between two hosts in each direction (default: 100)"
    add("--link", type=_above_zero, default=100.0, metavar="GBPS", help=link)
    latency = "µs of a message between hosts (default: 50)"
    add("--latency", type=_above_zero, default=50.0, metavar="US", help=latency)


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _above_zero(text: str) -> float:
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
