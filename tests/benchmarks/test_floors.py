"""What an H200's arithmetic and memory leave for a model: the arithmetic of the floors."""

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.floors import floor_seconds
from server.bench.dummy_models import parse_shape
from server.bench.workloads import GENERATION, GenerationCase
from tests.workers.contract.checkpoint.config_files import PUBLISHED
from workers.contract.checkpoint.checkpoint_config import read_model_config

ONE = next(case for case in GENERATION if case.name == "one")
LLAMA = read_model_config(parse_shape("llama8b"))


def test_a_lone_row_reads_all_weights_for_each_token() -> None:
    """7.5 billion numbers in the products of an 8B Llama, two bytes each."""
    assert floor_seconds(ONE, LLAMA) / ONE.outputs == pytest.approx(7.5e9 * 2 / 4.27e12, rel=0.02)


def test_a_window_bounds_what_is_attended_to() -> None:
    """20,000 tokens that see 1,000 each: 19.5 million pairs a layer in place of 200 million."""
    long = GenerationCase(name="long", count=1, own=20_000, outputs=1)
    narrow, wide = (msgspec.structs.replace(LLAMA.attention[0], window=w) for w in (1000, 20_000))
    windowed = floor_seconds(long, msgspec.structs.replace(LLAMA, attention=(narrow,)))
    whole = floor_seconds(long, LLAMA)
    pairs = 32 * (200e6 - 19.5e6)
    assert whole - windowed == pytest.approx(pairs * 4 * 32 * 128 / 560e12, rel=0.01)
    assert floor_seconds(long, msgspec.structs.replace(LLAMA, attention=(wide,))) == whole


def test_weights_in_fp8_are_half_as_many_bytes_but_for_the_head() -> None:
    in_fp8 = floor_seconds(ONE, LLAMA, in_fp8=(True, False))
    assert in_fp8 / ONE.outputs == pytest.approx((7.0e9 + 0.525e9 * 2) / 4.27e12, rel=0.02)


def test_keys_and_values_in_fp8_are_half_as_many_bytes() -> None:
    many = msgspec.structs.replace(ONE, count=256)
    saved = floor_seconds(many, LLAMA) - floor_seconds(many, LLAMA, in_fp8=(False, True))
    tokens = 256 * sum(128 + output for output in range(256))
    assert saved == pytest.approx(tokens * 32 * 2 * 8 * 128 / 4.27e12, rel=0.01)


MIXTRAL, QWEN, GPT_OSS = (
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-20b",
)
EXPERT = {MIXTRAL: 5.637e9, QWEN: 0.2265e9, GPT_OSS: 0.5972e9}
"""Numbers of an expert in each layer: 32 * 3 * 4096 * 14336, 48 * 3 * 2048 * 768, and
24 * 3 * 2880 * 2880."""

OTHERS = {MIXTRAL: 1.342e9 + 0.001e9 + 0.131e9, QWEN: 0.906e9 + 0.013e9 + 0.311e9}
OTHERS[GPT_OSS] = 0.637e9 + 0.002e9 + 0.579e9
"""Of attention, routers and the LM head."""


@pytest.mark.parametrize(
    ("name", "rows", "in_fp8", "touched", "expert_bytes"),
    [
        (MIXTRAL, 1, False, 2, 2),
        (MIXTRAL, 2, False, 3.5, 2),  # 8 * (1 - (3/4)**2)
        (QWEN, 16, False, 82.42, 2),  # 128 * (1 - (15/16)**16)
        (QWEN, 16, True, 82.42, 1),
        (GPT_OSS, 1, False, 4, 17 / 32),
        (GPT_OSS, 2, False, 7.5, 17 / 32),  # 32 * (1 - (7/8)**2)
    ],
)
def test_a_step_reads_the_experts_that_its_rows_touch(
    tmp_path: Path, name: str, rows: int, in_fp8: bool, touched: float, expert_bytes: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    model = read_model_config(tmp_path)
    short, long = (GenerationCase(name="few", count=rows, own=1, outputs=n) for n in (1, 2))
    seconds = [floor_seconds(case, model, in_fp8=(in_fp8, False)) for case in (short, long)]
    others = OTHERS[name] * 2 - (0.919e9 if expert_bytes == 1 else 0)
    want = (others + touched * EXPERT[name] * expert_bytes) / 4.27e12
    assert seconds[1] - seconds[0] == pytest.approx(want, rel=0.002)


def test_experts_that_were_counted_are_read_in_place_of_those_of_an_even_choice(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[QWEN]))
    model = read_model_config(tmp_path)
    case = GenerationCase(name="few", count=16, own=1, outputs=1)
    saved = floor_seconds(case, model) - floor_seconds(case, model, touched=72.42)
    assert saved == pytest.approx(10 * EXPERT[QWEN] * 2 / 4.27e12, rel=0.002)


def test_a_prompt_is_multiplied_by_the_experts_of_a_token(tmp_path: Path) -> None:
    """Two of Mixtral's eight, and not by the LM head; attention and cached keys are 0.2 percent."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[MIXTRAL]))
    model = read_model_config(tmp_path)
    short, long = (GenerationCase(name="p", count=1, own=n, outputs=1) for n in (1, 101))
    seconds = floor_seconds(long, model) - floor_seconds(short, model)
    assert seconds == pytest.approx(100 * 2 * (2 * 5.637e9 + 1.343e9) / 650e12, rel=0.005)
