"""Rotary embeddings in `config.json`: what is read, how long texts may be, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ModelConfig,
    ModelConfigError,
    RopeConfig,
    YarnScaling,
)

POSITIONS = 2048
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
FACTORS = [2.0] * 64
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS}


def written(folder: Path, **changes: Any) -> Path:
    """What transformers writes for Llama, but for `changes`: 2,048 positions, heads of 128."""
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


def read(folder: Path, **changes: Any) -> ModelConfig:
    written(folder, **changes)
    return read_model_config(folder)


def rope_of(folder: Path, **changes: Any) -> RopeConfig:
    (kind,) = read(folder, **changes).attention
    assert kind.rope is not None
    return kind.rope


def test_the_earlier_spelling(tmp_path: Path) -> None:
    linear = {"type": "linear", "factor": 2}
    rope = rope_of(tmp_path, rope_scaling=linear, rope_theta=5e5)
    assert rope == RopeConfig(theta=5e5, scaling=LinearScaling(factor=2.0))


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


def test_what_a_yarn_names(tmp_path: Path) -> None:
    own = {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 0.5}
    expected = YarnScaling(
        factor=4.0,
        original_max_position=1024,
        beta_fast=16.0,
        beta_slow=2.0,
        truncate=False,
        attention_factor=0.5,
    )
    assert rope_of(tmp_path, rope_scaling=YARN | own).scaling == expected


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        (LLAMA3, POSITIONS),
        (YARN, 4096),
        (YARN | {"factor": 1.5}, POSITIONS),
        ({"rope_type": "dynamic", "factor": 4.0}, POSITIONS),
        (
            {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 1024},
            1024,
        ),
    ],
)
def test_how_long_a_text_may_be(tmp_path: Path, scaling: Any, limit: int) -> None:
    assert read(tmp_path, rope_scaling=scaling).max_model_len == limit


def test_dynamic_scaling_is_none_up_to_its_length(tmp_path: Path) -> None:
    dynamic = {"type": "dynamic", "factor": 4.0}
    scaling = DynamicScaling(original_max_position=POSITIONS)
    assert rope_of(tmp_path, rope_scaling=dynamic) == RopeConfig(scaling=scaling)


def test_the_factors_of_longrope_follow_from_the_length(tmp_path: Path) -> None:
    short = {"short_factor": [1.0] * 64, "original_max_position_embeddings": 512}
    scaling = rope_of(tmp_path, rope_scaling=LONGROPE | short).scaling
    assert isinstance(scaling, LongScaling)
    assert scaling.factors(512) == (1.0,) * 64
    assert scaling.factors(513) == (2.0,) * 64


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "proportional"}, "rope type 'proportional' is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "rope_parameters.full_attention "),
        (LLAMA3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (YARN | {"short_factor": FACTORS}, "rope_parameters.short_factor "),
        (LONGROPE | {"long_factor": [1.0] * 63}, "63 factors do not fit 64 pairs"),
    ],
)
def test_what_is_not_supported(tmp_path: Path, scaling: Any, named: str) -> None:
    file = written(tmp_path, rope_parameters=scaling)
    with pytest.raises(ModelConfigError) as error:
        read_model_config(tmp_path)
    assert str(error.value).startswith(f"{file}: ")
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        *((LLAMA3, key) for key in ("factor", "low_freq_factor", "high_freq_factor")),
        (YARN, "factor"),
        *((LONGROPE, key) for key in ("short_factor", "long_factor")),
    ],
)
def test_scaling_without_a_number(tmp_path: Path, scaling: dict[str, Any], key: str) -> None:
    others = {name: value for name, value in scaling.items() if name != key}
    file = written(tmp_path, rope_scaling=others)
    with pytest.raises(ModelConfigError, match=f"^{file} has no 'rope_scaling\\.{key}'$"):
        read_model_config(tmp_path)
