"""What a Gemma's config.json must not say, in one line each."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError

_TEXT = {"hidden_size": 32, "num_hidden_layers": 6}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text_config": {"odd": 3}}, "text_config.odd 3 is not known"),
        ({"text_config": {"sliding_window": 0}}, "text_config.sliding_window 0 is less than 1"),
        ({"text_config": {"sliding_window_pattern": 0}}, "sliding_window_pattern 0 is less than"),
        ({"text_config": {"layer_types": []}}, "layer_types has 0 entries for 6 layers"),
        ({"text_config": {"attn_logit_softcapping": 5.0}}, "attn_logit_softcapping 5.0 is not"),
        ({"text_config": {"final_logit_softcapping": 0}}, "final_logit_softcapping 0 is not more"),
        ({"text_config": {"use_bidirectional_attention": True}}, "cannot generate"),
        ({"tie_word_embeddings": False}, "and text_config.tie_word_embeddings differ"),
        ({"audio_config": {}}, "audio_config {} is not known"),
    ],
)
def test_a_wrapper_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    text = _TEXT | changes.get("text_config", {})
    (tmp_path / "config.json").write_text(json.dumps(config | changes | {"text_config": text}))
    with pytest.raises(ModelConfigError, match=said):
        read_model_config(tmp_path)


def test_a_wrapper_of_defaults_is_not(tmp_path: Path) -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": _TEXT}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_config(tmp_path).num_layers == 6


def test_two_activations_that_differ(tmp_path: Path) -> None:
    """Some versions of transformers obeyed the one, others the other."""
    config = {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | {"hidden_activation": "gelu_pytorch_tanh"}))
    assert read_model_config(tmp_path).num_layers == 28
    file.write_text(json.dumps(config | {"hidden_activation": "gelu"}))
    with pytest.raises(ModelConfigError, match='hidden_activation "gelu" is not supported'):
        read_model_config(tmp_path)
