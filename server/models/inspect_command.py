"""`penstock inspect`: its flags."""

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

import msgspec

from server.models.inspection import InspectedModel, Inspection, LayersOfKind, inspect
from server.models.model_setup import EngineOptions
from server.settings import defaults
from server.settings.flags import add_engine_flag
from workers.contract.config import AskedTask, Task
from workers.contract.model_config import RopeConfig

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


_ENGINE_FLAGS = {
    "task": f"as one that does this: {', '.join(get_args(AskedTask))} (default: as its files say)",
    "pipeline_stages": "divide the layers among so many stages (default: "
    f"{defaults.PIPELINE_STAGES})",
    "dtype": "of weights and keys and values (default: auto, as on CUDA)",
    "max_model_len": "most tokens of a sequence (default: the model's limit)",
    "ignore_config_keys": "of config.json, generation_config.json and tokenizer_config.json, with "
    "commas: they may stay unread (default: none)",
}


def add_inspect(parser: argparse.ArgumentParser) -> None:
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


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_TASKS: dict[Task, str] = {
    "generate": "generates text",
    "embed": "embeds texts",
    "embed_sparse": "embeds texts as sparse vectors",
    "classify": "scores or classifies texts",
    "rerank": "scores pairs of texts by the logits of an answer's tokens",
}
_LABEL = 12
"""Width of the first column."""


def inspection_table(inspection: Inspection) -> str:
    """Lines of a label and a text. Then the stages; then the reasons for which it is refused."""
    lines = [_line("source", inspection.source)]
    if inspection.folder != inspection.source:
        lines.append(_line("folder", inspection.folder))
    if inspection.model is not None:
        lines += _model(inspection.model)
    lines += [_line("note", note) for note in inspection.notes]
    lines += [_line("refused", reason) for reason in inspection.refused]
    return "\n".join(lines if inspection.refused else [*lines, _line("refused", "no")])


def _model(model: InspectedModel) -> list[str]:
    within = ", the language model of a larger one" if model.wrapped else ""
    checkpoint = f"config.json names {model.checkpoint_dtype}"
    about = "" if model.parameters_from == "weight files" else "about "
    return [
        _line("model", f"{model.architecture}, of the family {model.family}{within}"),
        _line("task", f"{model.task}: {_TASKS[model.task]}, {_workflow(model)}"),
        _line("length", f"up to {model.max_model_len:,} tokens"),
        _line("vocabulary", f"{model.vocab_size:,} tokens"),
        _line("shape", _shape(model)),
        *(_line("attention", _attention(kind)) for kind in model.attention),
        _line("dtype", f"{model.dtype} ({checkpoint})"),
        _line("parameters", f"{about}{model.parameters:,}, by its {model.parameters_from}"),
        _line("weights", _size(model.weight_bytes)),
        _line("KV cache", _kv_cache(model)),
        *_stages(model),
    ]


def _workflow(model: InspectedModel) -> str:
    return "with a KV cache" if model.kv_cache else "each text in one step, without a KV cache"


def _shape(model: InspectedModel) -> str:
    heads = f"{model.num_heads} attention heads"
    if model.num_kv_heads != model.num_heads:
        heads += f", {model.num_kv_heads} of keys and values,"
    return (
        f"{amount(model.num_layers, 'layer')} of size {model.hidden_size:,}, {heads} of size "
        f"{model.head_dim}"
    )


def _attention(kind: LayersOfKind) -> str:
    own = kind.attention
    needs = ["causal" if own.causal else "bidirectional"]
    if own.window is not None:
        needs.append(f"window of {own.window:,} tokens")
    if own.softcap is not None:
        needs.append(f"soft cap {own.softcap:g}")
    if own.position_bias is not None:
        needs.append(f"position bias in {own.position_bias.num_buckets} buckets")
    if own.rope is not None:
        needs.append(_rope(own.rope))
    return f"{amount(kind.num_layers, 'layer')}: {', '.join(needs)}"


def _rope(rope: RopeConfig) -> str:
    part = "" if rope.fraction == 1 else f" of {rope.fraction:.0%} of each head"
    tag = None if rope.scaling is None else rope.scaling.__struct_config__.tag
    return f"rotary{part} with base {rope.theta:,.0f}{f', scaled as {tag}' if tag else ''}"


def _kv_cache(model: InspectedModel) -> str:
    if not model.kv_cache:
        return "none"
    full = f"{_size(model.kv_bytes_full)} for {model.max_model_len:,}"
    if model.kv_bytes_unused:
        full += f", {_size(model.kv_bytes_unused)} of them behind windows"
    return f"{_size(model.kv_bytes)} for 1,000 tokens, {full}"


def _stages(model: InspectedModel) -> list[str]:
    if len(model.stages) == 1:
        return []
    lines = list[str]()
    for number, stage in enumerate(model.stages):
        last = stage.first_layer + stage.num_layers - 1
        kv = f", {_size(stage.kv_bytes)} of KV for 1,000 tokens" if model.kv_cache else ""
        layers = f"{amount(stage.num_layers, 'layer')} ({stage.first_layer} to {last})"
        lines.append(_line(f"stage {number}", f"{layers}, {_size(stage.weight_bytes)}{kv}"))
    return lines


def amount(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(nbytes: int, units: Sequence[str] = _UNITS) -> str:
    number, unit = float(nbytes), 0
    while number >= 1024 and unit < len(units) - 1:
        number, unit = number / 1024, unit + 1
    return f"{nbytes:,} bytes" if unit == 0 else f"{number:,.1f} {units[unit]}"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"
