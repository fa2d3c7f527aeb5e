"""Decoders of every family on the GPU, teacher-forced, against transformers on the CPU."""

from pathlib import Path

import pytest

from tests.workers.equivalence import check_way
from tests.workers.inline_engine import Way
from tests.workers.models.test_decoders import DECODERS, taught
from tests.workers.models.tiny_models import TinyModels

pytestmark = pytest.mark.gpu

WAYS = {
    "whole": Way(device="cuda", backend="triton"),
    "chunks_with_graphs": Way(device="cuda", backend="triton", graphs=True, max_step_tokens=24),
    "two_stages": Way(device="cuda", backend="triton", stages=2, depth=3),
    "sdpa": Way(device="cuda", backend="sdpa"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DECODERS)
def test_every_family(tmp_path: Path, name: str, way: str) -> None:
    lesson = taught(TinyModels(tmp_path), DECODERS[name])
    engine = check_way(lesson, WAYS[way])
    assert (engine.graph_steps > 0) == WAYS[way].graphs
