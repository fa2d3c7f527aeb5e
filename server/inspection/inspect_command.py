"""`penstock inspect`: its flags."""

import argparse
import sys
from typing import get_args

import msgspec

from server.inspection.inspection import inspect
from server.inspection.inspection_table import inspection_table
from server.models.model_setup import EngineOptions
from server.settings import defaults
from server.settings.flags import add_engine_flag
from workers.contract.config import AskedTask

_DESCRIPTION = """\
Show what a model is, what its attention and memory need, and every reason that can be
found for which it would be refused. Only configuration and the heads of weight files
are read: it takes no GPU, and little time."""
_EXAMPLES = """\
examples:
  penstock inspect ./llama-3.1-8b
      what it is, what it needs, and whether it can be served
  penstock inspect ./llama-3.1-70b --pipeline-stages 4
      what each of four stages holds
  penstock inspect BAAI/bge-m3 --json
      a model of the Hugging Face hub, whose weights are not downloaded, for a program
The exit code is 0 if `penstock serve` would take the model, otherwise 1.
"""


_TASKS = ", ".join(get_args(AskedTask))
_ENGINE_FLAGS = {
    "task": f"as one that does this: {_TASKS} (default: as its files say)",
    "pipeline_stages": "divide the layers among so many stages (default: "
    f"{defaults.PIPELINE_STAGES})",
    "dtype": "of weights and keys and values (default: auto, as on CUDA)",
    "max_model_len": "most tokens of a sequence (default: the model's limit)",
    "ignore_config_keys": "of config.json, generation_config.json and tokenizer_config.json, with "
    "commas: they may stay unread (default: none)",
}


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Give `penstock inspect` its flags."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, or the id of a model on the Hugging Face hub"
    )
    for key, help_ in _ENGINE_FLAGS.items():
        add_engine_flag(parser, key, help_)
    parser.add_argument("--json", action="store_true", help="one JSON object (default: a table)")


def _run(_: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    given = vars(options)
    asked = {key: given[key] for key in _ENGINE_FLAGS if key in given}
    inspection = inspect(options.model, EngineOptions(device="cpu", **asked))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(inspection)).decode() + "\n")
    else:
        print(inspection_table(inspection))
    return 1 if inspection.refused else 0
