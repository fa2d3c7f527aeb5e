"""`python -m benchmarks`: measure the daemon on this machine, each figure beside its budget."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.report import CaseReport, NotMeasuredError, table
from server.bench.machine import Machine, this_machine
from server.demo import DemoModelMissingError


class _Case(NamedTuple):
    """A module with a function `measure() -> list[Figure]`, in a folder of this package."""

    folder: str
    title: str


_CASES = {
    "engine_loop": _Case(
        "engine", "Engine core: one step of the loop, over an executor that computes nothing"
    ),
    "prefill_loop": _Case(
        "engine", "Engine core: texts to embed, over an executor that computes nothing"
    ),
    "worker_step": _Case(
        "worker", "Worker: one step of the demo generator, and its part outside the model's math"
    ),
    "gpu_steps": _Case(
        "worker", "Worker on CUDA: steps of an 8B Llama's shape, by attention backend"
    ),
    "gpu_kernels": _Case(
        "worker", "Worker on CUDA: fused kernels, beside the same without what is fused"
    ),
    "bare_encoder": _Case(
        "worker", "Bare encoders on CUDA, compiled by torch: what our steps are compared with"
    ),
    "round_trips": _Case("links", "Between processes"),
    "http_load": _Case("http", "HTTP: one API process before a fake engine, with wrk as client"),
    "http_burst": _Case(
        "http", "HTTP: streams of 512/128, API processes before a fake engine, our own clients"
    ),
    "overload": _Case(
        "http", "HTTP: a daemon on one core under 2 and 10 times the load that it can serve"
    ),
    "concurrency": _Case("http", "HTTP: a daemon on one core by how many requests it has at once"),
    "start_up": _Case(
        "daemon", "penstock serve with the demo models: start-up from warm files, and memory"
    ),
    "cpu_embedding": _Case(
        "encoding", "The demo embedder on a CPU, against other programs that embed"
    ),
    "gpu_encoding": _Case(
        "encoding", "Encoders on CUDA, given texts, beside sentence-transformers on the same GPU"
    ),
    "generation": _Case(
        "generation", "The demo generator through the engine client, against transformers' generate"
    ),
}


class Results(msgspec.Struct, frozen=True):
    """All that `--json` keeps."""

    command: str
    machine: Machine
    cases: list[CaseReport]


def main() -> None:
    """Measure the chosen cases one after another, each printed as soon as it is done."""
    options = _parser().parse_args()
    machine = this_machine()
    print(machine.header())
    reports: list[CaseReport] = []
    for name in options.only or _CASES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        reports.append(_measure(name))
        print(table(reports[-1]), flush=True)
    if options.json is not None:
        command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        encoded = msgspec.json.encode(Results(command, machine, reports))
        options.json.write_bytes(msgspec.json.format(encoded) + b"\n")


def _measure(name: str) -> CaseReport:
    folder, title = _CASES[name]
    # Imported only when requested: some cases need torch, and one must not have it loaded.
    case = importlib.import_module(f"benchmarks.{folder}.{name}")
    try:
        return CaseReport(name, title, case.measure())
    except (NotMeasuredError, DemoModelMissingError) as error:
        return CaseReport(name, title, not_measured=str(error))


def _parser() -> argparse.ArgumentParser:
    cases = "\n".join(f"  {name:14}{case.title}" for name, case in _CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="python -m benchmarks [--only CASE ...] [--json FILE]",
        description="Measure penstock on this machine: each figure beside its budget, and whether "
        "it meets it.\nIt judges nothing else: the exit code is 0 whatever the figures are.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=_CASES, metavar="CASE", help="these cases (default: all)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="keep everything, the machine included, in FILE"
    )
    return parser


if __name__ == "__main__":
    main()
