"""`penstock inspect`: its flags."""

import argparse
import sys
from typing import get_args

import msgspec

from server.inspection.inspection import inspect
from server.inspection.inspection_table import inspection_table
from server.models.model_setup import EngineOptions
from server.settings import defaults
from server.settings.setting_types import parse_names, parse_positive
from workers.contract.config import AskedTask, Dtype

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


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Give `penstock inspect` its flags."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, or the id of a model on the Hugging Face hub"
    )
    parser.add_argument(
        "--task",
        choices=get_args(AskedTask),
        metavar="TASK",
        help=f"as one that does this: {', '.join(get_args(AskedTask))} (default: as its files say)",
    )
    parser.add_argument(
        "--pipeline-stages",
        type=parse_positive,
        default=defaults.PIPELINE_STAGES,
        metavar="N",
        help=f"divide the layers among so many stages (default: {defaults.PIPELINE_STAGES})",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", *get_args(Dtype)),
        metavar="DTYPE",
        help="of weights and keys and values (default: auto, as on CUDA)",
    )
    parser.add_argument(
        "--max-model-len",
        type=parse_positive,
        metavar="TOKENS",
        help="most tokens of a sequence (default: the model's limit)",
    )
    parser.add_argument(
        "--ignore-config-keys",
        type=parse_names,
        default=(),
        metavar="KEYS",
        help="of config.json, generation_config.json and tokenizer_config.json, with commas: they "
        "may stay unread",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (default: a table)")


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    del parser
    engine = EngineOptions(
        device="cpu",
        task=options.task,
        dtype=options.dtype,
        pipeline_stages=options.pipeline_stages,
        max_model_len=options.max_model_len,
        ignore_config_keys=options.ignore_config_keys,
    )
    inspection = inspect(options.model, engine)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(inspection)).decode() + "\n")
    else:
        print(inspection_table(inspection))
    return 1 if inspection.refused else 0
