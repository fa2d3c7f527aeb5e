"""Phi-3 and Phi-4: windows, rotation of a part of each head, factors by length."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import LongScaling, ModelConfigError, ModelShape, RopeConfig

PUBLISHED = Path(__file__).parent / "published"


def read(folder: Path, name: str, **changes: Any) -> ModelShape:
    config = json.loads((PUBLISHED / f"microsoft--{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return read_model_config(folder)


def rope_of(shape: ModelShape) -> RopeConfig:
    (kind,) = shape.attention
    assert kind.rope is not None
    return kind.rope


@pytest.mark.parametrize(
    ("name", "head_dim", "window"),
    [
        ("Phi-3-mini-4k-instruct", 96, 2047),
        ("Phi-3.5-mini-instruct", 96, None),  # one of 262,144 tokens, twice the positions
        ("phi-4", 128, None),
        ("Phi-4-mini-instruct", 128, None),
    ],
)
def test_heads_and_windows(tmp_path: Path, name: str, head_dim: int, window: int | None) -> None:
    shape = read(tmp_path, name)
    assert (shape.head_dim, shape.attention[0].window) == (head_dim, window)


def test_a_part_of_each_head_is_rotated(tmp_path: Path) -> None:
    assert rope_of(read(tmp_path, "Phi-4-mini-instruct")).rotary_dim(128) == 96
    assert rope_of(read(tmp_path, "phi-4")).rotary_dim(128) == 128


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_the_names_of_longrope(tmp_path: Path, kind: str) -> None:
    scaling = {"type": kind, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    own = rope_of(read(tmp_path, "Phi-3.5-mini-instruct", rope_scaling=scaling)).scaling
    assert isinstance(own, LongScaling)
    assert own.factors(4096) == (1.0,) * 48
    assert own.factors(4097) == (2.0,) * 48
    assert own.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_bias": True}, "attention_bias true is not supported"),
        ({"full_attn_mod": 2}, "full_attn_mod 2 is not supported"),
        ({"partial_rotary_factor": 0.7}, "67 of 96 dimensions of a head cannot be rotated"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not"),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}},
            "1 factors do not fit 48 pairs",
        ),
    ],
)
def test_what_is_not_supported(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelConfigError, match=reason):
        read(tmp_path, "Phi-3.5-mini-instruct", **changes)
