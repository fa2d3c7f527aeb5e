"""Equal pipelines over the GPUs of one or more hosts, with the daemon's own settings."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.pipeline.gpus import GPUS, scaled
from benchmarks.pipeline.loads import load
from benchmarks.pipeline.stages import Link, Pipeline, divided, kv_tokens
from benchmarks.pipeline.step_times import GPUName, StepTimes
from server.bench.dummy_models import parse_shape
from server.bench.workloads import GenerationCase
from server.models.model_setup import EngineOptions, set_up_model
from server.models.model_source import SetupError
from server.settings.defaults import MEMORY_SHARE, block_size, max_running
from server.settings.settings import Limits
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import ExecutionConfig


class Plan(NamedTuple):
    """So many equal pipelines, each with its part of the requests."""

    count: int
    config: ExecutionConfig
    pipeline: Pipeline
    kv_tokens: int


def plan(options: argparse.Namespace, times: StepTimes, stages: int) -> Plan:
    """The pipelines of so many stages each. Raises SetupError or ModelConfigError."""
    config, measured = _config(options, times, stages), read_model_config(parse_shape(times.shape))
    hosts, gpus = _places(options, times, stages)
    by_gpu = {gpu: scaled(times, measured, config.model, gpu) for gpu in gpus}
    by_stage = [by_gpu[gpu] for gpu in gpus]
    shares = tuple(int(MEMORY_SHARE * GPUS[gpu].memory * (1 << 30)) for gpu in gpus)
    config = msgspec.structs.replace(config, memory_shares=shares)
    config = divided(config, by_stage)
    link = Link(options.latency / 1e6, config.model.hidden_size * 16 / (options.link * 1e9))
    pipeline = Pipeline(by_stage, config.stage_layers, hosts, link)
    count = (options.gpus or stages) // stages
    return Plan(count, config, pipeline, options.kv_tokens or kv_tokens(config))


def _config(options: argparse.Namespace, times: StepTimes, stages: int) -> ExecutionConfig:
    """As on GPUs: the devices are never opened. Raises SetupError."""
    engine_options = EngineOptions(
        device="cpu",
        dtype="bfloat16",
        pipeline_stages=stages,
        stage_layers=options.stage_layers,
        steps_ahead=options.steps_ahead,
        load_format="dummy",
        max_running=options.max_running or max_running(stages, on_cpu=False),
        max_step_tokens=options.max_step_tokens,
        block_size=block_size(on_cpu=False),
    )
    shape = options.shape or parse_shape(times.shape)
    served = set_up_model(shape.name, shape, engine_options, Limits(), prefix="")
    if not served.engine.execution.model.has_kv_cache:
        raise SetupError("shape", f"{shape.name} does not generate")
    gpus = tuple(f"cuda:{stage}" for stage in range(stages))
    return msgspec.structs.replace(served.engine.execution, devices=gpus)


def _places(
    options: argparse.Namespace, times: StepTimes, stages: int
) -> tuple[list[int], list[GPUName]]:
    """The host and the GPU of each stage of the first pipeline. Raises SetupError if others are
    unlike it."""
    total, names = options.gpus or stages, options.gpu or [times.gpu]
    if total % stages:
        raise SetupError("gpus", f"{total} do not make pipelines of {stages} stages")
    if len(names) not in (1, options.hosts):
        raise SetupError("gpu", f"{len(names)} kinds are named for {options.hosts} hosts")
    hosts = [gpu * options.hosts // total for gpu in range(total)]
    kinds = [names[host % len(names)] for host in hosts]
    alike = {
        tuple((host - hosts[first], kinds[first + stage]) for stage, host in enumerate(part))
        for first in range(0, total, stages)
        if (part := hosts[first : first + stages])
    }
    if len(alike) > 1:
        raise SetupError("gpus", f"{total} on {options.hosts} hosts make unlike pipelines")
    return hosts[:stages], kinds[:stages]


def check_room(plan: Plan, cases: Sequence[GenerationCase]) -> None:
    """Raises SetupError unless the longest request fits the KV cache."""
    longest = max(request.prompt + request.output for case in cases for request in load(case))
    if plan.kv_tokens < longest:
        room = f"room for {max(0, plan.kv_tokens):,} tokens beside the weights"
        stages = plan.config.num_stages
        raise SetupError("stages", f"{stages} have {room}, and a request has {longest:,}")
