"""Rotary embeddings in `config.json`: what is read, how long texts may be."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.config_files import (
    LLAMA3,
    LONGROPE,
    SIZES,
    YARN,
    read,
    written,
)
from workers.contract.model_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    YarnScaling,
)

POSITIONS = 2048
"""The length of the Llama that transformers writes, with heads of 128."""


def rope_of(folder: Path, **changes: Any) -> RopeConfig:
    (kind,) = read(folder, written(**changes)).attention
    assert kind.rope is not None
    return kind.rope


def test_the_earlier_spelling(tmp_path: Path) -> None:
    linear, dynamic = {"type": "linear", "factor": 2}, {"type": "dynamic", "factor": 4.0}
    rope = rope_of(tmp_path, rope_scaling=linear, rope_theta=5e5)
    assert rope == RopeConfig(theta=5e5, scaling=LinearScaling(factor=2.0))
    up_to = DynamicScaling(original_max_position=POSITIONS)  # where it changes nothing
    assert rope_of(tmp_path, rope_scaling=dynamic) == RopeConfig(scaling=up_to)


@pytest.mark.parametrize(
    ("scaling", "kind"), [(LLAMA3, Llama3Scaling), (YARN, YarnScaling), (LONGROPE, LongScaling)]
)
def test_where_the_original_length_is(tmp_path: Path, scaling: Any, kind: Any) -> None:
    """Beside the object, in it, or nowhere: then it is the length that the model declares."""

    def original(**changes: Any) -> int:
        found = rope_of(tmp_path, **changes).scaling
        assert isinstance(found, Llama3Scaling | YarnScaling | LongScaling)
        assert isinstance(found, kind)
        return found.original_max_position

    key = "original_max_position_embeddings"
    without = {name: value for name, value in scaling.items() if name != key}
    assert original(rope_parameters=without) == POSITIONS
    assert original(rope_parameters=without | {key: 512}) == 512
    assert original(rope_parameters=without | {key: 512}, **{key: 256}) == 256


@pytest.mark.parametrize("architecture", ["Ministral3ForCausalLM", "GptOssForCausalLM"])
def test_null_is_the_familys_own_scaling(tmp_path: Path, architecture: str) -> None:
    config = SIZES | {"architectures": [architecture]}
    own = read(tmp_path, config)
    assert own == read(tmp_path, config | {"rope_parameters": None})
    assert own.attention[0].rope is not None
    assert isinstance(own.attention[0].rope.scaling, YarnScaling)


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        (LLAMA3, POSITIONS),
        (YARN, 4096),
        (YARN | {"factor": 1.5}, POSITIONS),
        ({"rope_type": "dynamic", "factor": 4.0}, POSITIONS),
        ({"rope_type": "dynamic", "original_max_position_embeddings": 1024}, 1024),
    ],
)
def test_how_long_a_text_may_be(tmp_path: Path, scaling: Any, limit: int) -> None:
    assert read(tmp_path, written(rope_scaling=scaling)).max_model_len == limit
