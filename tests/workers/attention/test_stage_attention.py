"""Layers of two kinds in one step: each has its own window, rotary embedding and norms."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.attention.reference import dense_attention
from tests.workers.step_tensors import packed_step
from workers.attention.backend_selection import select_backends
from workers.attention.base import AttentionNeeds
from workers.attention.stage_attention import LayerAttention, StageAttention
from workers.contract.model_config import AttentionKind, RopeConfig
from workers.layers.layer import Placement
from workers.layers.norm import QKNorm
from workers.layers.rotary import RotaryEmbedding

SIZE, EPS, LENGTHS = 16, 1e-6, [9, 12]
THETAS = [1e4, 1e6]
KINDS = [
    AttentionKind(causal=False, scale=0.2, window=5, rope=RopeConfig(theta=THETAS[0])),
    AttentionKind(causal=False, scale=0.3, rope=RopeConfig(theta=THETAS[1])),
]


def rotated(heads: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    angles = positions.double()[:, None] / theta ** (torch.arange(0, SIZE, 2) / SIZE)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = heads.double().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_each_layer_attends_as_its_kind_does(name: str) -> None:
    numbers = torch.Generator().manual_seed(0)
    needs = [AttentionNeeds(kind, "cpu", torch.float32, 4, 2, SIZE, 4) for kind in KINDS]
    placement = Placement(torch.device("cpu"), torch.float32)
    weights = torch.rand(2, SIZE, generator=numbers)
    norm = QKNorm(weights[0], weights[1], EPS)
    parts = zip(select_backends(name, needs), KINDS, (norm, None), strict=True)
    layers = [
        LayerAttention(
            backend, kind.rope and RotaryEmbedding(kind.rope, SIZE, 64, placement), own_norm
        )
        for backend, kind, own_norm in parts
    ]
    stage = StageAttention((4, 2), layers, ())
    step = packed_step([[0] * length for length in LENGTHS])
    attention = stage.over(step)
    for layer, kind in enumerate(KINDS):
        qkv = torch.randn(sum(LENGTHS), 8, SIZE, generator=numbers)
        attended = attention.attend(layer, attention.rotate_and_cache(layer, qkv.clone()))
        queries, keys, values = qkv.split([4, 2, 2], dim=1)
        if layer == 0:
            queries = F.rms_norm(queries, (SIZE,), norm.query, EPS)
            keys = F.rms_norm(keys, (SIZE,), norm.key, EPS)
        parts = [rotated(part, step.positions, THETAS[layer]) for part in (queries, keys)]
        rows = zip(*(part.split(LENGTHS) for part in (*parts, values)), strict=True)
        expected = torch.cat([dense_attention(q, k, v, kind) for q, k, v in rows])
        torch.testing.assert_close(attended.double(), expected, atol=2e-6, rtol=0)
