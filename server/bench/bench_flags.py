"""The flags of `penstock bench`."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from server.bench.cases.dummy_models import parse_shape, shape_names
from server.bench.cases.workloads import (
    DEGREES,
    GENERATION,
    HTTP,
    PREFILL,
    SHARING,
    Case,
    OfflineCase,
)
from server.bench.commands import BenchOptions, bench
from server.bench.load.http_client import Address
from server.bench.load.http_runner import running_server, started_server
from server.bench.offline import offline_runner
from server.models.model_setup import EngineOptions
from server.settings.flags import ENGINE_FLAGS, add_flags
from server.settings.setting_types import parse_positive, parse_share
from server.settings.settings import API_KEY_VARIABLE, api_key_from

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

_OFFLINE_GROUPS: dict[str, Sequence[OfflineCase]] = {
    "all-generation": GENERATION,
    "all-prefill": PREFILL,
    "all-degrees": DEGREES,
    "all-sharing": SHARING,
}
_HTTP_GROUPS = {
    "all-http-gen": tuple(case for case in HTTP if case.shape == "llama8b"),
    "all-http-emb": tuple(case for case in HTTP if case.shape == "bge-base"),
}

_OFFLINE = """\
Measure engines without HTTP: weights are dummies, prompts are random token ids, decoding is greedy
(but not in batchllm), and every output has exactly the case's length. Time is measured from the
first submit to the last output, without start-up and warm-up; the prefix cache is emptied before
each case.
"""
_SERVE = """\
Measure a server over HTTP, from the first request to the last answer, after a warm-up: a daemon
started for this (--start, with dummy weights) or a running server with OpenAI's API (--url).
Prompts are random words of one token each. A failed request fails its case.
"""


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Add both commands."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    offline = _command(commands, "offline", _OFFLINE, _OFFLINE_GROUPS, "engines without HTTP")
    offline.set_defaults(run=_offline)
    offline.add_argument(
        "--no-prefix-caching",
        action="store_true",
        help="where prompts share prefixes, give jobs cache salts of their own, so that "
        "none finds what another has computed",
    )
    serve = _command(commands, "serve", _SERVE, _HTTP_GROUPS, "a server over HTTP")
    serve.set_defaults(run=_serve)
    _add_server_flags(serve)
    for command in (offline, serve):
        add_flags(command, ENGINE_FLAGS)


def _command(
    commands: Any, name: str, description: str, groups: Mapping[str, Sequence[Case]], help_: str
) -> argparse.ArgumentParser:
    """A command, with the flags that both commands have."""
    named = {case.name: case for group in groups.values() for case in group}
    width = max(map(len, [*named, *groups]))
    lines = [f"  {each.name:{width}}  {each.shape}: {each.what}" for each in named.values()]
    lines += [f"  {group:{width}}  {len(cases)} cases" for group, cases in groups.items()]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"penstock bench {name} --case CASE [CASE ...] [options]",
        help=help_,
        description=description,
        epilog="cases:\n" + "\n".join(lines),
        # Descriptions as they are written, and room for the longer flags.
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=32),
    )
    parser.set_defaults(groups=groups, named=named, load_format="dummy")
    parser.add_argument(
        "--case",
        nargs="+",
        required=True,
        choices=[*named, *groups],
        metavar="CASE",
        help="one or more of the cases listed below",
    )
    _add_run_flags(parser)
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale",
        type=parse_share,
        default=1.0,
        metavar="FRACTION",
        help="run this part of each case, for a quick look not compared with goals (default: 1)",
    )
    parser.add_argument(
        "--repeat",
        type=parse_positive,
        default=1,
        metavar="N",
        help="run each case N times and report the medians (default: 1)",
    )
    parser.add_argument(
        "--shape",
        type=parse_shape,
        metavar="NAME|FOLDER",
        help="use this model in place of the case's own: " + ", ".join(shape_names()) + ", or the "
        "config.json in FOLDER",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="plot our figures beside the others to FILE, a PNG",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        metavar="LEVEL",
        help="level of the started engines and servers (default: warning)",
    )


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    where = group.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--start", action="store_true", help="start a daemon, with the engine flags below"
    )
    where.add_argument(
        "--url",
        help=f"a running server, such as http://127.0.0.1:8000; its API key is read from "
        f"${API_KEY_VARIABLE}",
    )
    group.add_argument(
        "--model",
        metavar="NAME",
        help="with --url, the model to measure (default: the first that the server lists)",
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="the model's tokenizer.json (default: for generation a byte-level BPE of 32,768 "
        "entries, trained at the start; for embeddings the demo embedder's)",
    )
    group.add_argument(
        "--api-workers",
        type=parse_positive,
        default=1,
        metavar="N",
        help="with --start, processes that speak HTTP (default: 1)",
    )
    group.add_argument(
        "--clients",
        type=parse_positive,
        default=1,
        metavar="N",
        help="processes that send the requests and receive the answers (default: 1)",
    )


def _offline(_: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    engine = _picked(options, EngineOptions)
    start = partial(offline_runner, engine, not options.no_prefix_caching)
    return bench(_picked(options, BenchOptions), _chosen(options), start)


def _serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    clients, tokenizer = options.clients, options.tokenizer
    if not options.start:
        address = Address.of(options.url, api_key_from())
        start = partial(running_server, address, options.model, clients, tokenizer)
    elif options.model is None:
        engine = _picked(options, EngineOptions)
        start = partial(started_server, engine, options.api_workers, clients, tokenizer)
    else:
        parser.error("--model is only for --url")
    return bench(_picked(options, BenchOptions), _chosen(options), start)


def _chosen(options: argparse.Namespace) -> Sequence[Any]:
    """The named cases, groups expanded, each once, in the order given."""
    chosen = [
        case
        for name in options.case
        for case in options.groups.get(name, [options.named.get(name)])
    ]
    return list(dict.fromkeys(chosen))


def _picked(options: argparse.Namespace, struct: type[_StructT]) -> _StructT:
    """The struct whose fields are the options of their names, as far as these were given."""
    given = vars(options)
    return struct(**{field: given[field] for field in struct.__struct_fields__ if field in given})
