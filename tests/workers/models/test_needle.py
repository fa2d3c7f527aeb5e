"""Needles in long contexts, with keys and values in FP8 and as they are computed."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.inline_engine import Way
from tests.workers.models.needle import found, save_induction_llama
from workers.attention import base, fp8_numbers

WAY = Way(max_running=4, kv_cache_dtype="fp8_e4m3")


@pytest.mark.parametrize("length", [2048, 8192])
def test_needles_are_found_in_fp8(tmp_path: Path, length: int) -> None:
    save_induction_llama(tmp_path, length)
    exact = found(tmp_path, replace(WAY, kv_cache_dtype="auto"), length)
    assert exact == 1
    assert found(tmp_path, WAY, length) >= exact - 0.01


def test_wrong_scales_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "unpacked", lambda scales: fp8_numbers.unpacked(scales)[::-1])
    save_induction_llama(tmp_path, 2048)
    assert found(tmp_path, WAY, 2048) < 0.5
