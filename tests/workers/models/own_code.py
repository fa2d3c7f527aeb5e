"""Encoders whose code comes with their checkpoints: GTE ("New") and Jina embeddings 2.

Computed from what is publicly known of that code, one text at a time, by torch alone. A tensor is
drawn when a computation first asks for it, so that names and shapes are those of the checkpoint.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from tests.workers.models.tiny_models import TinyModel

Keys = Mapping[str, Any]


class Weights:
    """A checkpoint's tensors, by their names behind `prefix`."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.prefix = ""

    def draw(self, name: str, *shape: int, mean: float = 0.0, std: float = 0.12) -> torch.Tensor:
        return self.tensors.setdefault(self.prefix + name, torch.randn(shape) * std + mean)

    def linear(self, rows: torch.Tensor, name: str, out: int, *, bias: bool = True) -> torch.Tensor:
        weight = self.draw(f"{name}.weight", out, rows.shape[-1])
        return F.linear(rows, weight, self.draw(f"{name}.bias", out) if bias else None)

    def norm(self, rows: torch.Tensor, name: str, eps: float) -> torch.Tensor:
        size = rows.shape[-1]
        weight, bias = self.draw(f"{name}.weight", size, mean=1.0), self.draw(f"{name}.bias", size)
        return F.layer_norm(rows, (size,), weight, bias, eps)


def embedded(
    weights: Weights, keys: Keys, tokens: torch.Tensor, types: torch.Tensor
) -> torch.Tensor:
    size, count = keys["hidden_size"], keys["type_vocab_size"]
    rows = weights.draw("embeddings.word_embeddings.weight", keys["vocab_size"], size)[tokens]
    if count:
        segments = weights.draw("embeddings.token_type_embeddings.weight", count, size)
        rows = rows + segments[types.clamp(max=count - 1)]
    return weights.norm(rows, "embeddings.LayerNorm", keys["layer_norm_eps"])


def heads_of(rows: torch.Tensor, keys: Keys) -> torch.Tensor:
    """[L, size] -> [H, L, D]"""
    return rows.view(len(rows), keys["num_attention_heads"], -1).transpose(0, 1)


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """[H, L, D] each -> [L, H * D]"""
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]) + bias
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)


def gte(weights: Weights, keys: Keys, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    rows, size, eps = embedded(weights, keys, tokens, types), keys["hidden_size"], 1e-12
    dim = size // keys["num_attention_heads"]
    scaling = keys.get("rope_scaling") or {"factor": 1.0}
    base = keys["rope_theta"] * scaling["factor"]
    frequencies = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    frequencies = frequencies / scaling["factor"] ** (2 / dim)
    angles = torch.outer(torch.arange(len(tokens)).float(), frequencies).repeat(1, 2)

    def rotated(part: torch.Tensor) -> torch.Tensor:
        first, second = part.chunk(2, -1)
        return part * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    for index in range(keys["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        if keys.get("pack_qkv", True):
            qkv = weights.linear(rows, f"{layer}.attention.qkv_proj", 3 * size).chunk(3, -1)
        else:
            names = [f"{layer}.attention.{part}_proj" for part in "qkv"]
            qkv = [weights.linear(rows, name, size) for name in names]
        query, key, value = (heads_of(part, keys) for part in qkv)
        output = attended(rotated(query), rotated(key), value)
        rows = rows + weights.linear(output, f"{layer}.attention.o_proj", size)
        rows, inner = weights.norm(rows, f"{layer}.attn_ln", eps), 2 * keys["intermediate_size"]
        up_gate = weights.linear(rows, f"{layer}.mlp.up_gate_proj", inner, bias=False)
        up, gate = up_gate.chunk(2, -1)
        rows = rows + weights.linear(F.gelu(gate) * up, f"{layer}.mlp.down_proj", size)
        rows = weights.norm(rows, f"{layer}.mlp_ln", eps)
    return rows


def slopes(heads: int) -> list[float]:
    """As in the code of the paper on ALiBi, by recursion."""
    below = 2 ** math.floor(math.log2(heads))
    start = 2 ** (-(2 ** -(math.log2(below) - 3)))
    powers = [start * start**place for place in range(below)]
    return powers if below == heads else powers + slopes(2 * below)[0::2][: heads - below]


def jina(weights: Weights, keys: Keys, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    rows, size, eps = embedded(weights, keys, tokens, types), keys["hidden_size"], 1e-12
    places = torch.arange(len(tokens))
    away = (places[:, None] - places).abs()
    bias = -torch.tensor(slopes(keys["num_attention_heads"]))[:, None, None] * away
    act = {"geglu": F.gelu, "reglu": F.relu}[keys["feed_forward_type"]]
    for index in range(keys["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        names = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        query, key, value = (heads_of(weights.linear(rows, name, size), keys) for name in names)
        output = attended(query, key, value, bias)
        rows = rows + weights.linear(output, f"{layer}.attention.output.dense", size)
        rows = weights.norm(rows, f"{layer}.attention.output.LayerNorm", eps)
        inner = 2 * keys["intermediate_size"]
        gate, up = weights.linear(rows, f"{layer}.mlp.gated_layers", inner, bias=False).chunk(2, -1)
        rows = rows + weights.linear(act(gate) * up, f"{layer}.mlp.wo", size)
        rows = weights.norm(rows, f"{layer}.mlp.layernorm", eps)
    return rows


ENCODERS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, str, str]]] = {
    "New": ("new.", gte, ("lm_head.dense", "lm_head.norm", "lm_head.decoder")),
    "Gte": ("gte.", gte, ("lm_head.dense", "lm_head.norm", "lm_head.decoder")),
    "JinaBert": (
        "bert.",
        jina,
        (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
        ),
    ),
}
"""The prefix behind which a model with a head has the encoder, the encoder, the LM head's parts."""


@dataclass(frozen=True, kw_only=True)
class OwnCode(TinyModel):
    """A model whose reference is in this file."""

    def save(self, folder: Path) -> Any:
        torch.manual_seed(7)
        weights, keys = Weights(), self.config
        name = next(name for name in ENCODERS if self.architecture.startswith(name))
        head = self.architecture.removeprefix(name)
        prefix, encoder, (dense, norm, decoder) = ENCODERS[name]
        size, words = keys["hidden_size"], keys["vocab_size"]

        def model(texts: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> Any:
            (tokens,) = texts
            types = torch.zeros_like(tokens) if token_type_ids is None else token_type_ids[0]
            weights.prefix = "" if head == "Model" else prefix
            rows = encoder(weights, keys, tokens, types)
            if head == "Model":
                return BaseModelOutput(last_hidden_state=rows[None])
            if head == "ForSequenceClassification":
                rows = weights.linear(rows[:1], "pooler.dense", size).tanh()
                weights.prefix = ""
                return MaskedLMOutput(logits=weights.linear(rows, "classifier", 3))
            table = weights.draw("embeddings.word_embeddings.weight", words, size)
            weights.prefix = ""
            weights.tensors[f"{decoder}.weight"] = table
            rows = weights.norm(F.gelu(weights.linear(rows, dense, size)), norm, 1e-12)
            return MaskedLMOutput(logits=weights.linear(rows, decoder, words)[None])

        model(torch.tensor([[2]]))  # which draws the tensors
        folder.mkdir(parents=True, exist_ok=True)
        config = {"architectures": [self.architecture], "num_labels": 3} | dict(keys)
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {name: tensor.clone() for name, tensor in weights.tensors.items()}
        save_file(tensors, folder / "model.safetensors")
        return model
