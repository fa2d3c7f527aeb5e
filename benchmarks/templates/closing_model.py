"""A checkpoint that soon ends whatever it has begun: a Llama that prefers closing tokens."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from benchmarks.templates.turns import strings_in
from engine_core.tokenization.tokenizer import TOKENIZER_FILE
from server.demo import GENERATOR_NAME, demo_models
from server.templates.formats import format_of
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate

_WIDTH = 8
_TAG = re.compile(r"<[^<>\s]+>")
_END, _CLOSER, _COMMA, _OPENER = 14.0, 11.0, 9.0, 5.0
"""Logits. All others are 0: 4,096 of them together are less likely than one comma."""


def write_closing_model(folder: Path, template: str) -> Path:
    """The folder, with a model that has the demo generator's tokenizer and this chat template,
    whose tags around calls and reasoning are tokens. Raises NotLearntError."""
    demo = demo_models()[GENERATOR_NAME]
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads((demo / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_file(str(demo / TOKENIZER_FILE))
    tags = _tags(template)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    tokenizer.save(str(folder / TOKENIZER_FILE))
    config = json.loads((demo / "config.json").read_text())
    config |= {
        "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH,
        "head_dim": _WIDTH,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "max_position_embeddings": 1 << 16,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": tokenizer.get_vocab_size(),
    }
    (folder / "config.json").write_text(json.dumps(config))
    logits = _logits(tokenizer.get_vocab(), tags, config["eos_token_id"])
    save_file(_tensors(logits), folder / "model.safetensors")
    return folder


def _tags(template: str) -> list[str]:
    loaded = LoadedTemplate(ChatTemplate(source=template, file="", tokens={}))
    form, _ = format_of(loaded)
    literals = json.loads(msgspec.json.encode(form))
    return sorted({tag for text in strings_in(literals) for tag in _TAG.findall(text)})


def _logits(ids: dict[str, int], tags: list[str], ends: list[int]) -> np.ndarray:
    """A logit for each token."""
    logits = np.zeros(len(ids), np.float32)
    for texts, logit in (
        ("[{0123456789-tfnTFN", _OPENER),
        (",", _COMMA),
        ((*"\"'}])", *tags), _CLOSER),
    ):
        logits[[ids[text] for text in texts]] = logit
    logits[ends] = _END
    return logits


def _tensors(logits: np.ndarray) -> dict[str, np.ndarray]:
    """The weights of a model that has these logits behind every token."""
    matrices = [f"self_attn.{name}_proj" for name in "qkvo"]
    matrices += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]
    shapes = dict.fromkeys(matrices, (_WIDTH, _WIDTH)) | dict.fromkeys(norms, (_WIDTH,))
    layer = {
        f"model.layers.0.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }
    return layer | {
        "model.embed_tokens.weight": np.ones((len(logits), _WIDTH), np.float32),
        "model.norm.weight": np.ones(_WIDTH, np.float32),
        "lm_head.weight": np.repeat(logits[:, None] / _WIDTH, _WIDTH, axis=1),
    }
