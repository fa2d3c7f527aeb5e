"""What published patterns of windows take of a KV cache, and where layers keep their blocks."""

from pathlib import Path

import pytest

from tests.engine_core.configs import with_windows
from tests.workers.contract.checkpoint.config_files import PUBLISHED, read
from workers.contract.cache_layout import CacheLayout

Windows = tuple[int | None, ...]


def every(count: int, window: int, layers: int) -> Windows:
    """Each layer has a window, but for one in `count`."""
    return tuple(None if number % count == count - 1 else window for number in range(layers))


PLAIN: Windows = (None,) * 32
MISTRAL: Windows = (4096,) * 32
GEMMA3_27B, GPT_OSS = every(6, 1024, 62), every(2, 128, 24)


def layout_of(windows: Windows, length: int, step: int = 8448) -> CacheLayout:
    return CacheLayout.of(with_windows(*windows), 128, length, step)


@pytest.mark.parametrize(
    ("windows", "length", "tables", "part"),
    [
        (PLAIN, 32_768, [1], 1.0),
        (MISTRAL, 32_768, [1], 33 / 256),
        (MISTRAL, 4096, [1], 1.0),
        (GEMMA3_27B, 131_072, [1, 6], 0.17),
        (every(2, 4096, 42), 8192, [1, 1], 0.76),
        (GPT_OSS, 131_072, [1, 1], 0.5),
        ((None,) * 28 + (32_768,) * 4, 131_072, [4, 1], 0.93),
    ],
)
def test_a_sequence_of_full_length(
    windows: Windows, length: int, tables: list[int], part: float
) -> None:
    """The part of what it would take without windows."""
    layout = layout_of(windows, length)
    assert [group.num_tables for group in layout.groups] == tables
    layers = layout.block_planes(range(len(windows)))
    held = layout.blocks_held(length) * layers
    assert held / (layout.max_blocks * len(windows)) == pytest.approx(part, rel=0.02)
    blocks = layout.usable(max_running=3)
    assert layout.longest(blocks) >= length
    assert layout.tokens(3 * layout.blocks_held(length)) == 3 * length


@pytest.mark.parametrize(
    ("size", "tables", "part"),
    [("31B", [1, 10], 0.11), ("12B", [1, 14], 0.087), ("E2B", [1, 2], 0.34)],
)
def test_heads_of_two_sizes(tmp_path: Path, size: str, tables: list[int], part: float) -> None:
    """The part of 65,536 tokens' keys and values that Gemma 4 keeps of them."""
    model = read(tmp_path, PUBLISHED[f"google/gemma-4-{size}-it"])
    layout, every_layer = CacheLayout.of(model, 16, 65_536, 8192), range(model.num_layers)
    assert [group.num_tables for group in layout.groups] == tables
    numbers = layout.blocks_held(65_536) * layout.block_planes(every_layer) * layout.plane_numbers
    keys = [model.heads_of(i)[1:] for i in every_layer if model.kv_layer(i) == i]
    whole = 4096 * sum(kv_heads * head_dim for kv_heads, head_dim in keys)
    assert numbers / whole == pytest.approx(part, rel=0.05)


@pytest.mark.parametrize("windows", [PLAIN, MISTRAL, GEMMA3_27B, GPT_OSS])
def test_the_longest_sequence_that_fits(windows: Windows) -> None:
    layout = layout_of(windows, 16_384)
    for blocks in (0, 1, 7, 50, 100, 200, 1000):
        entries = layout.longest(blocks) // 128
        assert layout.blocks_alone(entries) <= blocks
        assert entries == layout.max_blocks or layout.blocks_alone(entries + 1) > blocks


@pytest.mark.parametrize("stages", [[62], [21, 21, 20], [1, 61], [30, 5, 27]])
def test_layers_of_any_stages_have_places_of_their_own(stages: list[int]) -> None:
    layout, start = layout_of(GEMMA3_27B, 131_072), 0
    for count in stages:
        layers = range(start, start + count)
        places = layout.places(layers)
        assert len(set(places.values())) == count
        room = layout.block_planes(layers)
        for group in layout.groups:
            tables = range(group.first_table, group.first_table + group.num_tables)
            own = [place for layer, place in places.items() if layer in group.layers]
            assert all(place.table in tables and place.plane < room for place in own)
        start += count
    whole = layout.block_planes(range(62))
    assert whole == 10


def test_plain_models_say_what_they_said() -> None:
    plain, windowed = layout_of(PLAIN, 1000), layout_of(MISTRAL, 32_768)
    assert plain.described(12) == "1,536 tokens"
    assert windowed.described(330) == (
        "327,680 tokens in sequences of 32,768, of which layers with a window keep those of their "
        "window"
    )
