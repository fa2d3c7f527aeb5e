"""What an H200's arithmetic and memory leave for a model: the arithmetic of the floors."""

import msgspec
import pytest

from benchmarks.floors import floor_seconds
from server.bench.dummy_models import parse_shape
from server.bench.workloads import GENERATION, GenerationCase
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
