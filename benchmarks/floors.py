"""`python -m benchmarks.floors FILE ...`: measured generation beside what an H200's arithmetic and
memory leave, for models of any shape.

FILE is what `penstock bench offline --json` writes, with `--shape NAME` or without. A model's floor
is the time of its matrix products, each step by weights that are read or by arithmetic, whichever
takes longer, and of its attention; nothing else. A step reads the experts that its rows touch: with
dummy weights `python -m benchmarks.worker.experts_touched` counts them.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from server.bench.dummy_models import parse_shape
from server.bench.workloads import GENERATION, GenerationCase
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import Heads, ModelConfig
from workers.contract.quantization import FP4_BYTES

_BYTES_PER_SECOND, _FLOPS, _FP8_FLOPS, _ATTENTION_FLOPS = 4.27e12, 650e12, 1500e12, 560e12
"""Measured on one H200: a device's copy, read and written; products of large matrices, in bf16 one
after another, in FP8 with pauses; causal attention of prompts."""

_ITEM_BYTES = 2
_CASES = {case.name: case for case in GENERATION}
_SHAPE_NOTE = re.compile(r"on shape (\S+) instead of")


def main() -> None:
    """Print each case's figure, its floor's, and how much of the floor is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floors", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--experts",
        type=float,
        metavar="N",
        help="experts of a layer that decoded rows touch in a step (default: as many as rows that "
        "choose evenly and alone)",
    )
    given = parser.parse_args()
    print(f"{'model':16}{'case':6}{'tokens/s':>10}{'floor':>10}{'reached':>9}")
    for file in given.files:
        for report in json.loads(file.read_text())["cases"]:
            if report["runs"] and report["case"] in _CASES:
                print(_line(report, given.experts))


def _line(report: dict[str, Any], touched: float | None) -> str:
    noted = [match[1] for match in map(_SHAPE_NOTE.search, report["notes"]) if match]
    shape = noted[0] if noted else report["shape"]
    case, figures = _CASES[report["case"]], report["figures"]
    run = msgspec.structs.replace(case, count=int(figures["requests"]))
    engine = report["engine"]
    in_fp8 = bool(engine.get("weights_in_fp8")), engine.get("kv_cache_dtype") == "fp8_e4m3"
    seconds = floor_seconds(run, _model(shape), in_fp8=in_fp8, touched=touched)
    floor = figures["output_tokens"] / seconds
    rate = figures["output_tokens_per_s"]
    return f"{shape:16}{case.name:6}{rate:10,.0f}{floor:10,.0f}{rate / floor:9.1%}"


def _model(shape: str) -> ModelConfig:
    return read_model_config(parse_shape(shape))


def floor_seconds(
    case: GenerationCase,
    model: ModelConfig,
    max_running: int = 1024,
    *,
    in_fp8: tuple[bool, bool] = (False, False),
    touched: float | None = None,
) -> float:
    """The least time of a case of one prompt length, without shared prefixes: its prompts, then its
    rows decoded together, `max_running` at once. Weights of layers, and keys and values, may be
    `in_fp8`; the LM head is in 16 bits. Experts are in MXFP4 if the checkpoint says so. So many of
    a layer are `touched` by rows that are decoded, if that was counted."""
    rows, prompt, outputs = case.count, case.own, case.outputs
    layers, head = model.layer_numbers, model.vocab_size * model.hidden_size
    flops, item_bytes = (_FP8_FLOPS, 1) if in_fp8[0] else (_FLOPS, _ITEM_BYTES)
    prompts = 2 * layers * rows * prompt / flops
    prompts += 4 * rows * _attended(model, prompt) / _ATTENTION_FLOPS
    together = min(rows, max_running)
    read = _weight_bytes(model, together, item_bytes, touched) + head * _ITEM_BYTES
    step = max(read / _BYTES_PER_SECOND, 2 * together * (layers / flops + head / _FLOPS))
    cached = sum(_cached(model, prompt + number) for number in range(outputs))
    kv_bytes = cached * (1 if in_fp8[1] else _ITEM_BYTES)
    decoding = outputs * step * rows / together
    return prompts + decoding + rows * kv_bytes / _BYTES_PER_SECOND


def _weight_bytes(model: ModelConfig, rows: int, item_bytes: int, touched: float | None) -> float:
    """Bytes of the layers' matrices that a step reads: of experts those `touched`, or the expected
    number that `rows` rows choose, each row evenly and alone; in MXFP4 those of experts only."""
    own, quantization = model.experts, model.quantization
    if own is None:
        return model.layer_numbers * item_bytes
    in_fp4 = quantization is not None and quantization.in_fp4
    of_each = sum(map(model.expert_numbers, range(model.num_layers)))
    if touched is None:
        touched = own.count * (1 - (1 - own.active / own.count) ** rows)
    others = (model.layer_numbers - own.active * of_each) * item_bytes
    return others + touched * of_each * (FP4_BYTES if in_fp4 else item_bytes)


def _layers(model: ModelConfig) -> list[tuple[Heads, int | None]]:
    """The heads of each layer, and its window; None for layers without."""
    kinds = [model.attention[kind] for kind in model.layer_kinds]
    return [(model.heads(kind), kind.window) for kind in kinds]


def _cached(model: ModelConfig, context: int) -> int:
    """Numbers of keys and values to which the last token of `context` attends, over all layers."""
    return sum(
        2 * heads.num_kv_heads * heads.head_dim * min(context, window or context)
        for heads, window in _layers(model)
    )


def _attended(model: ModelConfig, prompt: int) -> float:
    """Pairs of a prompt's tokens that attend to each other, times the numbers of a query, over all
    layers."""
    numbers = 0.0
    for heads, window in _layers(model):
        seen = min(prompt, window or prompt)
        pairs = seen * seen / 2 + (prompt - seen) * seen
        numbers += heads.num_heads * heads.head_dim * pairs
    return numbers


if __name__ == "__main__":
    main()
