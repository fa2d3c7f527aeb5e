"""Models whose layers have windows, in caches that hold these windows and little more: what is
computed is what transformers computes, and the same to the bit however rows share and are cut."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.workers.equivalence import Lesson, check_prefix_cache, check_way
from tests.workers.inline_engine import Way, stage_config
from tests.workers.models.decoders import DECODERS, WINDOW
from tests.workers.models.test_decoders import continuation
from tests.workers.models.test_groups import prompts, texts
from tests.workers.models.tiny_models import TinyModel
from workers.contract.cache_layout import CacheLayout

LONGEST = 200
_SLIDING, _FULL = "sliding_attention", "full_attention"


def longer(name: str, **changes: Any) -> TinyModel:
    """A tiny model for texts of 256 tokens."""
    config = {**DECODERS[name].config, "max_position_embeddings": 256, **changes}
    return TinyModel(architecture=DECODERS[name].architecture, config=config)


MODELS = {
    "mistral": longer("mistral"),
    "gemma2": longer("gemma2"),
    # Five layers with a window to one without, of which three stages hold unlike numbers.
    "gemma3": longer("gemma3", num_hidden_layers=6, layer_types=[*[_SLIDING] * 5, _FULL]),
}
TABLES = {"mistral": [1], "gemma2": [1, 1], "gemma3": [1, 5]}


@pytest.fixture(scope="module", params=MODELS)
def lesson(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    tiny, folder = MODELS[request.param], tmp_path_factory.mktemp(request.param)
    lengths = 1, 5, 6, 7, 5, 6, 7, 5, 6, 7, WINDOW, 70, LONGEST
    model, rows = tiny.save(folder), tiny.texts(*lengths, first=6)
    return Lesson(folder, rows, [continuation(model, row) for row in rows])


def layout_of(folder: Path, way: Way) -> CacheLayout:
    return stage_config(folder, way).execution.cache_layout


def tight(lesson: Lesson, **options: Any) -> Way:
    """A way whose cache holds the longest text, and not much more."""
    way = Way(block_size=8, max_step_tokens=24, **options)
    entries = -(-(LONGEST + 8) // way.block_size)
    least = layout_of(lesson.folder, way).blocks_alone(entries)
    return Way(block_size=8, max_step_tokens=24, num_blocks=least + 3, **options)


def test_blocks_of_a_sequence(lesson: Lesson, request: pytest.FixtureRequest) -> None:
    layout = layout_of(lesson.folder, Way(block_size=8, max_step_tokens=24))
    name = request.node.callspec.params["lesson"]
    assert [group.num_tables for group in layout.groups] == TABLES[name]
    every = layout.places(range(6 if name == "gemma3" else 4))
    assert len(set(every)) == len(every), "no two layers keep their blocks in one place"


@pytest.mark.parametrize(("stages", "depth"), [(1, 2), (3, 4)])
def test_transformers_agrees_in_a_cache_of_windows(lesson: Lesson, stages: int, depth: int) -> None:
    way = tight(lesson, stages=stages, depth=depth)
    engine = check_way(lesson, way)
    usage = engine.scheduler.usage()
    assert usage.preemptions > 0
    assert usage.kv_blocks_used == 0


def test_what_is_cached_changes_nothing(lesson: Lesson) -> None:
    check_prefix_cache(lesson, Way(block_size=8, max_step_tokens=64))


@pytest.mark.parametrize("stages", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("room", [3, 1000])
def test_each_row_gets_what_it_gets_alone(
    lesson: Lesson, stages: int, kv_cache_dtype: Literal["auto", "fp8_e4m3"], room: int
) -> None:
    """Rows that begin alike, and part within a block."""
    rows = prompts(67)
    alone = texts(lesson.folder, Way(backend="naive", kv_cache_dtype=kv_cache_dtype), rows)
    sizes = {"block_size": 8, "max_step_tokens": 24, "backend": "naive", "stages": stages}
    way = Way(**sizes, kv_cache_dtype=kv_cache_dtype, depth=stages + 1)
    least = layout_of(lesson.folder, way).blocks_alone(-(-(67 + 9 + 8) // 8))
    way = Way(**sizes, kv_cache_dtype=kv_cache_dtype, depth=stages + 1, num_blocks=least + room)
    shared = texts(lesson.folder, way, rows, 67, crowded=room == 3)
    assert shared.keys() == alone.keys()
    for key, (ids, logprobs) in alone.items():
        assert shared[key][0] == ids, key
        assert np.array_equal(shared[key][1], logprobs), key
