"""The command line: `penstock serve` and `penstock bench`."""

import argparse
import sys
from collections.abc import Sequence

from server import __version__
from server.argument_types import device, fraction, port, positive, seconds, size
from server.bench.cli import add_bench
from server.config import API_KEY_VARIABLE, Limits, api_key_from
from server.daemon import START_ERRORS, ServeCommand, serve
from server.model_setup import EngineOptions

_EXAMPLES = """\
examples:
  penstock serve
      the two demo models: text generation, embeddings and reranking
  penstock serve ./llama-3.1-8b BAAI/bge-base-en-v1.5 --port 9000
      a folder and a model of the Hugging Face hub, each with an engine of its own
  penstock serve ./llama-3.1-8b --served-model-name chat --device cuda --pipeline-stages 2
      one model, called `chat` by requests, in two stages on cuda:0 and cuda:1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: its exit code. Bad usage exits with 2, a start that fails with 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(parser, options)
    except START_ERRORS as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.served_model_name and len(options.served_model_name) != len(options.models):
        parser.error(
            f"{len(options.served_model_name)} --served-model-name for {len(options.models)} models"
        )
    return serve(_command(options))


def _command(options: argparse.Namespace) -> ServeCommand:
    return ServeCommand(
        models=tuple(options.models),
        names=tuple(options.served_model_name),
        host=options.host,
        port=options.port,
        api_workers=options.api_workers,
        api_key=options.api_key or api_key_from(),
        drain_timeout=options.drain_timeout,
        startup_timeout=options.startup_timeout,
        log_level=options.log_level,
        limits=Limits(max_requests=options.max_requests, max_body_bytes=options.max_body_size),
        engine=EngineOptions(
            **{field: getattr(options, field) for field in EngineOptions.__struct_fields__}
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="One daemon for language models, embedding models and rerankers.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(
        commands.add_parser(
            "serve",
            usage="penstock serve [MODEL ...] [options]",
            help="serve models over HTTP, in OpenAI's shapes",
            description="Serve models over HTTP, in OpenAI's shapes, until stopped.",
            epilog=_EXAMPLES,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=32
            ),
        )
    )
    add_bench(
        commands.add_parser(
            "bench",
            help="measure speed, beside what others reach and what we aim for",
            description="Measure the headline workloads, offline or over HTTP.",
        ),
        _add_engine_flags,
    )
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_serve)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a folder with config.json, tokenizer.json and safetensors files, or the id of a "
        "model on the Hugging Face hub (default: the two demo models)",
    )
    _add_model_flags(parser)
    _add_engine_flags(parser)
    _add_http_flags(parser)
    _add_life_flags(parser)


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="what requests call the model; once for each MODEL, in the same order "
        "(default: the folder's name, or the hub id)",
    )
    group.add_argument(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="longest prompt and answer together (default: what the model was made for)",
    )
    group.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        metavar="FORMAT",
        help="auto reads safetensors; dummy makes weights up from config.json, to measure speed "
        "(default: auto)",
    )


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engines, for each model")
    group.add_argument(
        "--device",
        type=device,
        default="auto",
        help="cpu, cuda, or cuda:N for the first stage, with the next devices for the others "
        "(default: auto, CUDA where there is any)",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        metavar="DTYPE",
        help="of weights and activations: float32, bfloat16 or float16 (default: auto, float32 on "
        "a CPU, the checkpoint's half precision on CUDA)",
    )
    group.add_argument(
        "--pipeline-stages",
        type=positive,
        default=1,
        metavar="N",
        help="processes that each hold a part of the layers, each on its own device (default: 1)",
    )
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of each stage (default: on a CPU the cores, divided by the stages)",
    )
    group.add_argument(
        "--attention-backend",
        choices=("auto", "flash_attn", "triton", "flashinfer", "xformers", "sdpa", "naive"),
        default="auto",
        metavar="NAME",
        help="flash_attn, triton, flashinfer, xformers, sdpa, or naive, which is slow and simple "
        "and there to compare with (default: auto, the fastest that works here)",
    )
    _add_capacity_flags(parser)


def _add_capacity_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("capacity, for each model")
    group.add_argument(
        "--max-running",
        type=positive,
        metavar="N",
        help="sequences that generate at once (default: 64 on a CPU, 512 on CUDA)",
    )
    group.add_argument(
        "--max-step-tokens",
        type=positive,
        metavar="TOKENS",
        help="most tokens of one step (default: 512 for a generator and 2048 for an encoder on a "
        "CPU, 8192 and 16384 on CUDA)",
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
        help="unit in which the cache is given out and shared (default: 16 on a CPU, 128 on CUDA)",
    )
    group.add_argument(
        "--memory-share",
        type=fraction,
        default=0.9,
        metavar="SHARE",
        help="of each CUDA device, taken by all engines together: weights, cache and the rest "
        "(default: 0.9)",
    )


def _add_http_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    limits = Limits()
    group.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    group.add_argument(
        "--port", type=port, default=8000, help="0 takes any that is free (default: 8000)"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"ask every request for it (default: ${API_KEY_VARIABLE}, which other users of the "
        "machine cannot see; no key if unset)",
    )
    group.add_argument(
        "--api-workers",
        type=positive,
        default=1,
        metavar="N",
        help="processes that speak HTTP (default: 1)",
    )
    group.add_argument(
        "--max-requests",
        type=positive,
        default=limits.max_requests,
        metavar="N",
        help="requests in the house of the whole daemon; more are answered with 429 "
        f"(default: {limits.max_requests})",
    )
    group.add_argument(
        "--max-body-size",
        type=size,
        default=limits.max_body_bytes,
        metavar="SIZE",
        help=f"of a request (default: {limits.max_body_bytes >> 20}MiB)",
    )


def _add_life_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("start and stop")
    group.add_argument(
        "--startup-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="give up if not ready by then (default: 600)",
    )
    group.add_argument(
        "--drain-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="on SIGTERM or Ctrl-C, time to finish what runs; a second one ends at once "
        "(default: 30)",
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        metavar="LEVEL",
        help="debug, info, warning or error (default: info)",
    )
