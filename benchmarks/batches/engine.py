"""The engine under measurement: dummy weights, one shape, the flags of `penstock bench`."""

import argparse
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from engine_core.tokenization.tokenizer import Tokenizer
from server.bench.dummy_models import byte_level_bpe, shape_folder, write_model
from server.bench.workloads import GENERATION, GenerationCase
from server.daemon.run import RunningEngine, running_engine
from server.models.model_setup import EngineOptions


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Which case's prompts, how much of it, on what."""
    parser.add_argument("--case", default="b16", choices=("b16", "b400"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the case (default: 1)")
    parser.add_argument("--shape", type=Path, help="folder of a config.json (default: llama8b)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-running", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")


def case_of(given: argparse.Namespace) -> GenerationCase:
    """The case, scaled."""
    (case,) = (case for case in GENERATION if case.name == given.case)
    return case.scaled(given.scale)


@asynccontextmanager
async def measured_engine(given: argparse.Namespace) -> AsyncGenerator[RunningEngine]:
    """An engine with a tokenizer of 32,768 entries, which its vocabulary has, too."""
    options = EngineOptions(
        load_format="dummy",
        device=given.device,
        max_running=given.max_running,
        log_level="warning",
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, given.shape or shape_folder("llama8b"), Tokenizer(byte_level_bpe()))
        async with running_engine(model, options) as engine:
            yield engine
