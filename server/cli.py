"""The command line: the commands of `penstock` and their flags."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from server import __version__
from server.batches.batch_flags import add_batch
from server.cluster.node import add_join
from server.cluster.ray_executor import assumed_ray_cluster, serve_on_ray
from server.cluster.serving import Master, serve_on_nodes
from server.daemon.credentials import Credentials
from server.daemon.daemon import START_ERRORS, build_config, serve
from server.daemon.supervisor import Hangup
from server.daemon.welcome import describe
from server.errors import CommandError, one_line
from server.models.inspect_command import add_inspect
from server.settings.flags import ENGINE_FLAGS, add_flags, serve_command
from server.settings.setting_types import FlagGroup
from server.settings.settings import RETIRED, Limits, ServerConfig, flag_name
from server.trace import add_trace

_EXAMPLES = """\
examples:
  penstock serve
      the two demo models: text generation, embeddings and reranking
  penstock serve --served-model-name penstock-demo,gpt-4o-mini --served-model-name minilm
      the same under other names, such as one that a program already uses
  penstock serve ./llama-3.1-8b BAAI/bge-base-en-v1.5 --port 9000
      a folder and a model of the Hugging Face hub, each with an engine of its own
  penstock serve ./llama-3.1-8b --served-model-name chat --pipeline-stages 2
      one model, called `chat` by requests, on two GPUs that each hold a part of its layers
  penstock serve --config penstock.yaml --port 9000
      what the file describes, except for the port
"""
_CONFIG_EXAMPLES = """\
examples:
  penstock config --config penstock.yaml
      the whole configuration, as JSON
  penstock config --check --config penstock.yaml
      exit code 0 if the configuration is valid, otherwise 1 and one line with the error
"""
_JOIN = """\
Be a node of `penstock serve --nodes N`: compute some stages of its model on this host, until
the master stops (exit code 0), or it or any node is lost (exit code 1)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: its exit code. Bad usage exits with 2, a start that fails with 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser(with_bench="bench" in arguments)
    for key, instead in RETIRED.items():
        if any(argument.partition("=")[0] == flag_name(key) for argument in arguments):
            parser.error(f"{flag_name(key)} is gone: {instead}")
    options = parser.parse_args(arguments)
    try:
        return options.run(options.parser, options)
    except (*START_ERRORS, CommandError) as error:
        print(f"penstock: error: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    hangup = Hangup()
    command = serve_command(parser, vars(options))
    if command.settings.executor == "ray":
        return serve_on_ray(command, hangup)
    if master := Master.of(command):
        return serve_on_nodes(command, master, hangup)
    return serve(command, hangup)


def _config(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Decide everything that `serve` would, and start nothing."""
    command = serve_command(parser, vars(options))
    private = Path(tempfile.gettempdir()) / "penstock-????????"
    credentials = Credentials(command)
    if command.settings.executor == "ray":
        cluster = assumed_ray_cluster(command)
    else:
        master = Master.of(command)
        cluster = master and master.assumed_cluster()
    port = command.settings.port
    config = build_config(command, credentials, port=port, folder=private, cluster=cluster)
    if options.check:
        print("\n".join(map(describe, config.models)))
    else:
        print(_shown(config))
    return 0


_SHOWN = (
    "host port default_model api_workers api_keys share_prefixes metrics_key tls cors_origins "
    "strict_fields startup_timeout drain_timeout stall_timeout max_restarts log_level "
    "metrics_alias access_log otlp_traces_endpoint executor ray_address nodes master "
    "cluster_secret_file interface count_files process_file batch_file limits state models"
).split()


def _shown(config: ServerConfig) -> str:
    """The configuration as JSON, how a model is computed among the fields of its engine. Without
    its secret, its keys' digests (a short key could be guessed) and the names of settings for
    messages."""
    keys = tuple(msgspec.structs.replace(key, digest="redacted") for key in config.api_keys)
    decided = msgspec.to_builtins(msgspec.structs.replace(config, api_keys=keys))
    decided["limits"] = {key: decided[key] for key in Limits.__struct_fields__}
    shown = {key: decided[key] for key in _SHOWN}
    for model in shown["models"]:
        model["engine"], *model["copies"] = map(_flat, (model["engine"], *model["copies"]))
    return msgspec.json.format(msgspec.json.encode(shown)).decode()


def _flat(engine: dict[str, Any]) -> dict[str, Any]:
    execution = engine.pop("execution")
    del execution["setting_names"], execution["cluster_keys"]
    return execution | engine


def _parser(*, with_bench: bool) -> argparse.ArgumentParser:
    """The flags of `penstock bench` only `with_bench`: no other command imports `server.bench`."""
    about = "One daemon for language models, embedding models and rerankers."
    parser = argparse.ArgumentParser(prog="penstock", description=about)
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # Examples as they are written, and room for the longer flags.
    written = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
    add_command = partial(commands.add_parser, formatter_class=written)
    _add_serve_and_config(add_command)
    join = "take stages of the model that `serve --nodes` serves from another host"
    add_join(add_command("join", help=join, description=_JOIN))
    batch = add_command("batch", help="answer a file of requests")
    add_batch(batch, lambda options: serve_command(batch, vars(options)))
    _add_models(batch, (FlagGroup.MODELS, *ENGINE_FLAGS))
    inspect = "show what a model is and needs, and whether it would be refused"
    add_inspect(add_command("inspect", help=inspect))
    trace = "write what the stages of a running daemon do to a file that Perfetto shows"
    add_trace(add_command("trace", help=trace))
    bench = commands.add_parser(
        "bench",
        help="measure speed and compare it with vLLM's figures and our goals",
        description="Measure the headline workloads, offline or over HTTP.",
    )
    if with_bench:
        from server.bench.command import add_bench  # noqa: PLC0415

        add_bench(bench)
    return parser


def _add_serve_and_config(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    serve = add_command(
        "serve",
        usage="penstock serve [MODEL ...] [options]",
        help="serve models over HTTP, in OpenAI's shapes",
        description="Serve models over HTTP, in OpenAI's shapes, until stopped.",
        epilog=_EXAMPLES,
    )
    config = add_command(
        "config",
        usage="penstock config [--check] [MODEL ...] [options]",
        help="show or check what `serve` would run, and start nothing",
        description="Show, as JSON, the configuration that `penstock serve` would run with the "
        "same arguments, or check it. Nothing is started, and the port is not taken.",
        epilog=_CONFIG_EXAMPLES,
    )
    for command, run in ((serve, _serve), (config, _config)):
        command.set_defaults(run=run, parser=command)
        _add_models(command, tuple(FlagGroup))
    config.add_argument(
        "--check", action="store_true", help="only check whether it is valid (default: show it)"
    )


def _add_models(parser: argparse.ArgumentParser, groups: Sequence[FlagGroup]) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a folder with config.json, tokenizer.json and weights, or the id of a model on "
        "the Hugging Face hub (default: the two demo models)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a configuration file in YAML; flags of the daemon override it, but models and their "
        "engines come only from the file (default: none)",
    )
    add_flags(parser, groups)
