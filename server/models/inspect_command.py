"""`penstock inspect`: its flags, and its answer as YAML or JSON."""

import argparse
import sys
from typing import Any, cast

import msgspec
import yaml

from server.models.inspection import inspect
from server.models.model_setup import EngineOptions
from server.settings.flags import add_flag
from server.settings.setting_types import declared_flags
from server.settings.settings import EngineSettings

_DESCRIPTION = """\
Show what a model is, what its attention and memory need, how its chats call tools and
reason, and every reason that can be found for which it would be refused. Only
configuration, the chat template and the heads of weight files are read: it takes no GPU,
and little time. kv_bytes are keys and values of 1,000 tokens, kv_bytes_full those of
max_model_len tokens in whole blocks, less what is out of layers' windows. By default the
dtype is the one of a GPU."""
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
_FLAGS = (
    *("task", "pipeline_stages", "dtype", "quantization", "kv_cache_dtype", "max_model_len"),
    "ignore_config_keys",
)
_ONE_LINE = sys.maxsize


def add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, or the id of a model on the Hugging Face hub"
    )
    for field, flag in declared_flags(EngineSettings):
        if field.name in _FLAGS:
            add_flag(parser, field, flag)
    parser.add_argument("--json", action="store_true", help="one JSON object (default: YAML)")


def _run(_: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    asked = {key: value for key, value in vars(options).items() if key in _FLAGS}
    inspection = inspect(options.model, EngineOptions(device="cpu", **asked))
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(inspection)).decode())
    else:
        shown = _readable(msgspec.to_builtins(inspection))
        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=_ONE_LINE), end="")
    return 1 if inspection.refused else 0


def _readable(value: Any) -> Any:
    """`value` with numbers of bytes in MiB, and lists of numbers on one line."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value).items()
        return {
            key: f"{own / (1 << 20):,.1f} MiB"
            if "_bytes" in key and own is not None
            else _readable(own)
            for key, own in fields
        }
    if isinstance(value, list | tuple):
        items = [_readable(item) for item in cast("list[Any]", value)]
        are_numbers = items and all(isinstance(item, int | float) for item in items)
        return ", ".join(map(str, items)) if are_numbers else items
    return value
