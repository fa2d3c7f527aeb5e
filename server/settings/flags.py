"""The flags of `penstock serve`: each sets the setting of its name; its help has the default.

One that is not given leaves no trace, so that defaults and choices differ.
"""

import argparse
from typing import get_args

from server.settings import defaults
from server.settings.argument_types import (
    api_key,
    device,
    fraction,
    names,
    origin,
    port,
    positive,
    seconds,
    size,
)
from server.settings.server_config import API_KEY_VARIABLE
from server.settings.settings import LogLevel
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import Dtype, LoadFormat


def _group(  # noqa: ANN202 (argparse's own)
    parser: argparse.ArgumentParser, title: str, description: str | None = None
):
    return parser.add_argument_group(title, description, argument_default=argparse.SUPPRESS)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """What requests call the models, and what of them is read."""
    group = _group(parser, "models")
    group.add_argument(
        "--served-model-name",
        dest="names",
        action="append",
        type=names,
        metavar="NAMES",
        help="what requests call the model: a name, or several with commas, of which answers tell "
        "the first; once for each MODEL, in the same order (default: the folder's name, or the "
        "hub id)",
    )
    group.add_argument(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="longest prompt and answer together (default: what the model was made for)",
    )
    group.add_argument(
        "--load-format",
        choices=get_args(LoadFormat),
        metavar="FORMAT",
        help="auto reads safetensors; dummy makes weights up from config.json, to measure speed "
        "(default: auto)",
    )


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """How each engine runs, and how much it holds."""
    group = _group(parser, "engines, for each model")
    group.add_argument(
        "--device",
        type=device,
        help="cpu, cuda, or cuda:N for the first stage, with the next devices for the others "
        "(default: auto, CUDA where there is any)",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", *get_args(Dtype)),
        metavar="DTYPE",
        help="of weights and activations: float32, bfloat16 or float16 (default: auto, float32 on "
        "a CPU, the checkpoint's half precision on CUDA)",
    )
    group.add_argument(
        "--pipeline-stages",
        type=positive,
        metavar="N",
        help="processes that each hold a part of the layers; more than one on CPUs only "
        "(default: 1)",
    )
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of each stage (default: on a CPU the cores, divided by the stages)",
    )
    group.add_argument(
        "--attention-backend",
        choices=[name.value for name in AttentionBackendName],
        metavar="NAME",
        help=f"one of {', '.join(AttentionBackendName)}; naive is slow and simple, to compare with "
        "(default: auto, the fastest that works here)",
    )
    _add_capacity_flags(parser)


def _add_capacity_flags(parser: argparse.ArgumentParser) -> None:
    group = _group(parser, "capacity, for each model")
    group.add_argument(
        "--max-running",
        type=positive,
        metavar="N",
        help="sequences that generate at once "
        f"(default: {defaults.max_running(on_cpu=True)} on a CPU, "
        f"{defaults.max_running(on_cpu=False)} on CUDA)",
    )
    group.add_argument(
        "--max-step-tokens",
        type=positive,
        metavar="TOKENS",
        help="most tokens of one step (default: 512 for a generator and 2048 for an encoder on a "
        "CPU, 8448 and 16384 on CUDA)",
    )
    group.add_argument(
        "--kv-cache-memory",
        type=size,
        metavar="SIZE",
        help="key-value cache of each stage, such as 2GiB (default: on a CPU what --max-running "
        "needs, at most 1GiB; on CUDA what weights and the largest step leave of --memory-share)",
    )
    group.add_argument(
        "--block-size",
        type=positive,
        metavar="TOKENS",
        help="unit in which the cache is given out and shared "
        f"(default: {defaults.block_size(on_cpu=True)} on a CPU, "
        f"{defaults.block_size(on_cpu=False)} on CUDA)",
    )
    group.add_argument(
        "--memory-share",
        type=fraction,
        metavar="SHARE",
        help="of each CUDA device, taken by all engines together: weights, cache and the rest "
        f"(default: {defaults.MEMORY_SHARE})",
    )


def add_http_flags(parser: argparse.ArgumentParser) -> None:
    """Where the daemon listens, who may call it and what it admits."""
    group = _group(parser, "HTTP")
    group.add_argument("--host", help=f"(default: {defaults.HOST})")
    group.add_argument(
        "--port", type=port, help=f"0 takes any that is free (default: {defaults.PORT})"
    )
    group.add_argument(
        "--api-workers",
        type=positive,
        metavar="N",
        help="processes that speak HTTP (default: 1)",
    )
    group.add_argument(
        "--strict-fields",
        action="store_true",
        help="refuse bodies with unknown fields (default: ignore those)",
    )
    _add_access_flags(parser)
    _add_limit_flags(parser)


def _add_access_flags(parser: argparse.ArgumentParser) -> None:
    group = _group(parser, "access")
    group.add_argument(
        "--api-key",
        type=api_key,
        metavar="KEY",
        help=f"ask every request for it (default: ${API_KEY_VARIABLE}, which other users of the "
        "machine cannot see; no key if unset)",
    )
    group.add_argument(
        "--api-key-file",
        dest="api_key_files",
        action="append",
        metavar="FILE",
        help="one key a line, # begins a comment; may be given several times. A request needs any "
        "one key, of any source (default: none)",
    )
    group.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="speak HTTPS with this certificate, or chain, in PEM (default: HTTP)",
    )
    group.add_argument(
        "--tls-key", metavar="FILE", help="its private key, not encrypted, in PEM (default: none)"
    )
    group.add_argument(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        type=origin,
        metavar="ORIGIN",
        help="let pages of this origin call the daemon from a browser, such as "
        "https://chat.example.org; * for any; may be given several times (default: none)",
    )


def _add_limit_flags(parser: argparse.ArgumentParser) -> None:
    group = _group(parser, "limits")
    group.add_argument(
        "--max-requests",
        type=positive,
        metavar="N",
        help="requests in flight in the whole daemon; more are answered with 429 "
        f"(default: {defaults.MAX_REQUESTS})",
    )
    group.add_argument(
        "--max-sequences",
        type=positive,
        metavar="N",
        help="their prompts, inputs and documents together; more are answered with 429 "
        f"(default: {defaults.MAX_SEQUENCES})",
    )
    group.add_argument(
        "--max-queue-seconds",
        type=seconds,
        metavar="SECONDS",
        help="longest expected wait until a request begins, for each model; more are answered with "
        f"429 (default: {defaults.MAX_QUEUE_SECONDS:g}; 0: no limit)",
    )
    group.add_argument(
        "--max-body-size",
        type=size,
        metavar="SIZE",
        help=f"of a request (default: {defaults.MAX_BODY_BYTES >> 20}MiB)",
    )
    for what, default in (
        ("inputs", f"prompts or inputs of a request (default: {defaults.MAX_INPUTS})"),
        ("documents", f"documents of a rerank (default: {defaults.MAX_DOCUMENTS})"),
        ("n", f"choices for each prompt (default: {defaults.MAX_N})"),
    ):
        group.add_argument(f"--max-{what}", type=positive, metavar="N", help=default)


def add_life_flags(parser: argparse.ArgumentParser) -> None:
    """How long starting and stopping may take, and what is logged."""
    group = _group(
        parser,
        "start and stop",
        "/health and /health/ready answer 200 while every model takes requests, 503\n"
        "before and after; a liveness probe asks /health/live.",
    )
    group.add_argument(
        "--startup-timeout",
        type=seconds,
        metavar="SECONDS",
        help=f"give up if not ready by then (default: {defaults.STARTUP_TIMEOUT:g})",
    )
    group.add_argument(
        "--drain-timeout",
        type=seconds,
        metavar="SECONDS",
        help="on SIGTERM or Ctrl-C, or when a part has died, time to finish what runs; a second "
        f"signal ends at once (default: {defaults.DRAIN_TIMEOUT:g})",
    )
    group.add_argument(
        "--stall-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end if a step of a model, or an API process, stands still for so long; 0, for "
        "debuggers: never, and idle engines and workers are not watched either "
        f"(default: {defaults.STALL_TIMEOUT:g})",
    )
    group.add_argument(
        "--log-level",
        choices=get_args(LogLevel),
        metavar="LEVEL",
        help=f"debug, info, warning or error (default: {defaults.LOG_LEVEL})",
    )
