"""An activation function that is not known is refused before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.small_sizes import SIZES
from workers.contract.checkpoint.architectures import FAMILIES
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError

_KEYS = {
    "DistilBert": ["activation"],
    "Gemma2": ["hidden_activation"],
    "Gemma3": ["hidden_activation"],
    "ModernBert": ["hidden_activation", "classifier_activation"],
}
"""Of families that do not call it `hidden_act`."""
_ARCHITECTURES = {family.name: name for name, family in FAMILIES.items()}


@pytest.mark.parametrize(
    ("family", "key"),
    [(name, key) for name in _ARCHITECTURES for key in _KEYS.get(name, ["hidden_act"])],
)
def test_the_line_names_it_and_those_that_are_known(tmp_path: Path, family: str, key: str) -> None:
    config: dict[str, Any] = SIZES | {"architectures": [_ARCHITECTURES[family]]}
    file = tmp_path / "config.json"
    if family == "Gemma3":
        config["architectures"] = ["Gemma3ForCausalLM"]
    file.write_text(json.dumps(config))
    assert read_model_config(tmp_path).num_layers == 2
    file.write_text(json.dumps(config | {key: "xielu"}))
    known = "silu, relu, tanh, gelu, gelu_new, gelu_pytorch_tanh"
    with pytest.raises(ModelConfigError) as error:
        read_model_config(tmp_path)
    assert str(error.value) == f"{file}: {key} 'xielu' is not supported (one of {known})"
