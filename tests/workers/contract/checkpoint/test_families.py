"""A window counts where it hides a token of some text."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.small_sizes import LENGTH, SIZES
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError

CAUSAL: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {},
    "Phi3ForCausalLM": {},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"use_sliding_window": True, "max_window_layers": 1},
    "Gemma2ForCausalLM": {},
    "Gemma3ForCausalLM": {},
}
BIDIRECTIONAL: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3TextModel": ("sliding_window", {"use_bidirectional_attention": True}),
    "ModernBertModel": ("local_attention", {}),
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": LENGTH,
    "rope_theta": 10_000.0,
}


def windows(folder: Path, architecture: str, **keys: Any) -> set[int | None]:
    """Of all layers."""
    config = SIZES | {"architectures": [architecture]} | keys
    (folder / "config.json").write_text(json.dumps(config))
    model = read_model_config(folder)
    return {model.attention[kind].window for kind in model.layer_kinds}


@pytest.mark.parametrize("architecture", CAUSAL)
def test_before_a_token(tmp_path: Path, architecture: str) -> None:
    """The last token is LENGTH - 1 behind the first."""

    def found(window: int) -> set[int | None]:
        return windows(tmp_path, architecture, sliding_window=window, **CAUSAL[architecture])

    assert LENGTH - 1 in found(LENGTH - 1)
    for window in (LENGTH, LENGTH + 1, 2**40):
        assert found(window) == {None}
    with pytest.raises(ModelConfigError, match="sliding_window 0 is less than 1"):
        found(0)


@pytest.mark.parametrize("architecture", BIDIRECTIONAL)
def test_on_both_sides(tmp_path: Path, architecture: str) -> None:
    key, others = BIDIRECTIONAL[architecture]
    layers = {"layer_types": ["full_attention", "sliding_attention"]}

    def found(both: int) -> set[int | None]:
        return windows(tmp_path, architecture, **{key: both}, **others, **layers)

    assert LENGTH - 1 in found(2 * (LENGTH - 2))
    assert found(2 * (LENGTH - 1)) == {None}
    with pytest.raises(ModelConfigError, match=f"{key} 0 is less than 1"):
        found(0)


def test_a_length_that_yarn_extends(tmp_path: Path) -> None:
    found = [
        windows(tmp_path, "MistralForCausalLM", sliding_window=window, rope_parameters=YARN)
        for window in (LENGTH, 4 * LENGTH - 1, 4 * LENGTH)
    ]
    assert found == [{LENGTH}, {4 * LENGTH - 1}, {None}]
