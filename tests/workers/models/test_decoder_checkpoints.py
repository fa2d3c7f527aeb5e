"""Decoders in half precision, and the language model of one that sees images."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from engine_core.messages import SamplingParams
from tests.workers.checkpoints import save_randomly
from tests.workers.inline_engine import InlineEngine, Way
from tests.workers.models.decoders import DECODERS, LIMIT, WINDOW
from tests.workers.stages import distributions
from workers.contract.config import Dtype
from workers.contract.token_sampling import GREEDY

VOCABULARY = 211
PROMPT = torch.randint(
    6, VOCABULARY, (LIMIT - 1,), generator=torch.Generator().manual_seed(5)
).tolist()
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
}


def reference(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0, :-1].float().log_softmax(dim=-1)


def ours(folder: Path, dtype: Dtype = "float32") -> torch.Tensor:
    """In chunks that are longer than the window."""
    engine = InlineEngine(folder, Way(dtype=dtype, max_step_tokens=WINDOW + 1))
    params = SamplingParams(sampling=GREEDY, max_tokens=0, logprobs=0, prompt_logprobs=VOCABULARY)
    engine.generate([PROMPT], params, lambda sampled: sampled.token)
    return torch.from_numpy(np.concatenate([distributions(part) for part in engine.scored[0]]))


@pytest.mark.parametrize("name", ["llama", "gemma", "gemma2", "gemma3"])
def test_bfloat16_is_no_further_off_than_transformers(tmp_path: Path, name: str) -> None:
    """Mean distance of the log-probabilities from those of float32."""
    model = DECODERS[name].save(tmp_path)
    exact, theirs = reference(model), reference(model.bfloat16())
    off = (ours(tmp_path, dtype="bfloat16") - exact).abs().mean()
    assert 0 < off <= 1.2 * (theirs - exact).abs().mean()


def published(folder: Path, text: dict[str, Any]) -> None:
    """Give what transformers 5 wrote the names that published checkpoints have."""
    file = folder / "model.safetensors"
    tensors = {
        name.replace("model.language_model.", "language_model.model.", 1)
        if name.startswith("model.language_model.")
        else name.removeprefix("model."): tensor
        for name, tensor in load_file(file).items()
    }
    assert {name.split(".")[0] for name in tensors} == {
        "language_model", "vision_tower", "multi_modal_projector"
    }  # fmt: skip
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))


@pytest.mark.parametrize("rewritten", [False, True])
def test_the_language_model_of_one_that_sees_images(tmp_path: Path, rewritten: bool) -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 7,
        "head_dim": 24,
        "vocab_size": 211,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": WINDOW,
    }
    torch.manual_seed(7)
    wide = deepcopy(text) | {"initializer_range": 0.2}
    config = Gemma3Config(text_config=wide, vision_config=VISION)
    model = save_randomly(Gemma3ForConditionalGeneration(config).eval(), tmp_path)
    if not rewritten:
        published(tmp_path, text)
    assert reference(model).std() > 1
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=1e-4, rtol=0)


def test_the_first_form_of_qwen_vl(tmp_path: Path) -> None:
    """The text's keys are the wrapper's own. transformers between the two forms also wrote
    `model.language_model`."""
    model = DECODERS["qwen2_vl"].save(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters") | {"type": "mrope"}
    del rope["rope_type"]
    file.write_text(json.dumps(text | config | {"rope_scaling": rope}))
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=1e-4, rtol=0)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "model.norm.weight" in tensors
    save_file(
        {
            re.sub(r"^model\.", "model.language_model.", name): tensor
            for name, tensor in tensors.items()
        },
        file,
    )
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=1e-4, rtol=0)
