"""`penstock bench`: its flags, and the cases that they name, each with its report."""

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from engine_core.refusal import RefusalError
from server.batches.http_client import Address
from server.bench import report, workloads
from server.bench.dummy_models import parse_shape, shape_folder, shape_names
from server.bench.http_runner import HTTPRunner, running_server, started_server
from server.bench.machine import this_machine
from server.bench.measurement import BenchError
from server.bench.offline import OfflineRunner, offline_runner
from server.bench.workloads import Case, OfflineCase, Shape
from server.daemon.daemon import START_ERRORS
from server.models.model_setup import EngineOptions
from server.settings.flags import ENGINE_FLAGS, add_flags
from server.settings.setting_types import parse_positive, parse_share
from server.settings.settings import API_KEY_VARIABLE, api_key_from

_GPU = "H200"
_SETTINGS = (
    *("devices", "stage_layers", "steps_ahead", "transport", "dtype", "attention_backend"),
    *("max_model_len", "max_running", "max_step_tokens", "max_step_rows", "block_size"),
    *("kv_cache_bytes",),
    *("disable_cascade_attn", "weights_in_fp8", "kv_cache_dtype"),
)

_OFFLINE_GROUPS: dict[str, Sequence[OfflineCase]] = {
    "all-generation": workloads.GENERATION,
    "all-prefill": workloads.PREFILL,
    "all-degrees": workloads.DEGREES,
    "all-sharing": workloads.SHARING,
    "all-tensorrt": workloads.TENSORRT,
    "all-decisions": workloads.DECISIONS,
}
_HTTP_GROUPS = {
    "all-http-gen": tuple(case for case in workloads.HTTP if case.shape == "llama8b"),
    "all-http-emb": tuple(case for case in workloads.HTTP if case.shape == "bge-base"),
}

_OFFLINE = """\
Measure engines without HTTP: weights are dummies, prompts are random token ids, decoding is greedy
(but not in batchllm), and every output has exactly the case's length. A case has `count` prompts,
or groups of `members` with a common `prefix`, of so many tokens of their `own`. Time is measured
from the first submit to the last output; the prefix cache is emptied before each case.
"""
_SERVE = """\
Measure a server over HTTP, from the first request to the last answer, after a warm-up: a daemon
started for this (--start, with dummy weights) or a running server with OpenAI's API (--url).
Prompts are random words of one token each. A failed request fails its case.
"""

_Start = Callable[[Path, Any], AbstractAsyncContextManager[OfflineRunner | HTTPRunner]]
"""Starts a runner for the cases of one shape, given its folder and the first of them."""


def add_bench(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    offline = _command(commands, "offline", _OFFLINE, _OFFLINE_GROUPS, "engines without HTTP")
    offline.set_defaults(run=_offline)
    offline.add_argument(
        "--no-prefix-caching",
        action="store_true",
        help="where prompts share prefixes, give jobs cache salts of their own, so that "
        "none finds what another has computed",
    )
    starts = "start the engine N times, measure the cases on each, and report how far starts differ"
    _add_number(offline, "--repeat-starts", f"{starts} (default: 1)")
    serve = _command(commands, "serve", _SERVE, _HTTP_GROUPS, "a server over HTTP")
    serve.set_defaults(run=_serve, repeat_starts=1)
    _add_server_flags(serve)
    for command in (offline, serve):
        add_flags(command, ENGINE_FLAGS)


def _command(
    commands: Any,
    name: str,
    description: str,
    groups: Mapping[str, Sequence[Case]],
    help_: str,
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
    _add_number(parser, "--repeat", "run each case N times and report the medians (default: 1)")
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
        help="with --url, the model to measure (default: the only one that serves the case)",
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="the model's tokenizer.json (default: with --url the server's /tokenize; with --start "
        "for generation a byte-level BPE of 32,768 entries, trained at the start, for embeddings "
        "the demo embedder's)",
    )
    _add_number(group, "--api-workers", "with --start, processes that speak HTTP (default: 1)")
    sending = "processes that send the requests and receive the answers (default: 1)"
    _add_number(group, "--clients", sending)


def _add_number(group: Any, flag: str, help_: str) -> None:
    group.add_argument(flag, type=parse_positive, default=1, metavar="N", help=help_)


def _offline(_: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    start = partial(offline_runner, _engine_options(options), not options.no_prefix_caching)
    return _Bench(options, start).run()


def _serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    clients, tokenizer = options.clients, options.tokenizer
    if not options.start:
        try:
            address = Address.of(options.url, api_key_from())
        except ValueError as error:
            raise BenchError(str(error)) from None
        start = partial(running_server, address, options.model, clients, tokenizer)
    elif options.model is None:
        engine = _engine_options(options)
        start = partial(started_server, engine, options.api_workers, clients, tokenizer)
    else:
        parser.error("--model is only for --url")
    return _Bench(options, start).run()


def _engine_options(options: argparse.Namespace) -> EngineOptions:
    """The flags of an engine, as far as these were given."""
    return msgspec.convert(vars(options), EngineOptions)


class _Bench:
    """One call of the command. Its report is saved after each case, for it may be stopped."""

    def __init__(self, options: argparse.Namespace, start: _Start) -> None:
        self._options, self._start, self._targets = options, start, report.read_targets()
        command = shlex.join(["penstock", *sys.argv[1:]])
        self._report = report.Report(command, this_machine(), self._targets.vllm_version)
        self._cases: dict[str, report.CaseReport] = {}

    def run(self) -> int:
        """Measure the named cases, groups expanded, each once and in the order given.

        Returns the exit code. Raises BenchError if a case is not measured, or a file that is asked
        for cannot be written.
        """
        whole, options = self._report, self._options
        self._check_outputs()
        print(whole.machine.header(), flush=True)
        named = [options.groups.get(name) or [options.named[name]] for name in options.case]
        cases = dict.fromkeys(chain.from_iterable(named))
        for _ in range(options.repeat_starts):
            uvloop.run(self._measure([case for case in cases if case.name not in self._lost()]))
        print("\n" + report.table(whole.cases, whole.vllm_version), end="", flush=True)
        if options.plot is not None:
            report.plot(whole, options.plot)
        if lost := self._lost():
            raise BenchError(f"not measured: {', '.join(lost)}")
        return 0

    def _lost(self) -> list[str]:
        return [name for name, case in self._cases.items() if case.error is not None]

    def _check_outputs(self) -> None:
        """Find at the start what would fail at the end. Raises BenchError."""
        try:
            if (picture := self._options.plot) is not None:
                if self._targets.vllm_version is None:
                    raise BenchError(
                        "--plot compares with benchmarks/targets.toml of a source checkout"
                    )
                report.drawing_library()
                picture.touch()
            self._save()
        except OSError as error:
            raise BenchError(str(error)) from None

    def _save(self) -> None:
        """Raises OSError."""
        if self._options.json is not None:
            text = msgspec.json.format(msgspec.json.encode(self._report))
            self._options.json.write_bytes(text + b"\n")

    async def _measure(self, cases: Sequence[Case]) -> None:
        """Report each case as soon as it is over, with one start for all cases of a shape."""
        by_shape: defaultdict[Shape, list[Case]] = defaultdict(list)
        for case in cases:
            by_shape[case.shape].append(case)
        for shape, group in by_shape.items():
            folder, over = self._options.shape or shape_folder(shape), 0
            try:
                async with self._start(folder, group[0]) as runner:
                    for case in group:
                        self._add(await self._measured(case, runner))
                        over += 1
            except (BenchError, RefusalError, *START_ERRORS) as error:
                for case in group[over:]:
                    self._add(self._failed(case.scaled(self._options.scale), error))

    def _add(self, case: report.CaseReport) -> None:
        self._cases[case.case] = case
        self._report.cases[:] = self._cases.values()
        print(report.details(case), flush=True)
        self._save()

    def _failed(self, part: Case, error: Exception) -> report.CaseReport:
        return report.failed(part, error, self._cases.get(part.name))

    async def _measured(self, case: Case, runner: OfflineRunner | HTTPRunner) -> report.CaseReport:
        part: Any = case.scaled(self._options.scale)
        try:
            await runner.warm_up(part)
            runs = [await runner.measure(part, run) for run in range(self._options.repeat)]
        except (BenchError, RefusalError) as error:
            return self._failed(part, error)
        engine = runner.model.execution if runner.model is not None else None
        return report.measured(
            part,
            runs,
            targets=self._targets,
            notes=self._differences(case, part, runner),
            engine={name: getattr(engine, name) for name in _SETTINGS} if engine else {},
            earlier=self._cases.get(part.name),
        )

    def _differences(self, case: Case, part: Case, runner: OfflineRunner | HTTPRunner) -> list[str]:
        """How a run differs from the workload that its targets are for."""
        found: list[str] = []
        engine = runner.model.execution if runner.model is not None else None
        if part.count < case.count:
            found.append(f"a quick look: {part.count} instead of {case.count}")
        if isinstance(runner, HTTPRunner) and engine is None and runner.name != case.shape:
            found.append(f"on model {runner.name} instead of {case.shape}")
        elif self._options.shape is not None:
            found.append(f"on shape {self._options.shape.name} instead of {case.shape}")
        if engine is not None and engine.device_type == "cpu":
            found.append("on a CPU")
        elif not any(_GPU in gpu for gpu in self._report.machine.gpus):
            found.append(f"not on an {_GPU}")
        if engine is not None and engine.dtype != "bfloat16":
            found.append(f"in {engine.dtype}")
        if engine is not None and (own := engine.model.quantization) and own.of_weights:
            found.append(f"with weights in {own.weight_dtype}")
        if engine is not None and engine.cache_dtype != engine.dtype:
            found.append("with keys and values in FP8")
        return found
