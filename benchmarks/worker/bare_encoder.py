"""A bare encoder on CUDA, the floor of an engine's: BERT base as modules of torch, compiled, with
FlashAttention 2 over packed texts, each step one CUDA graph. Weights are random, in bfloat16."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import varlen

from benchmarks.report import Figure, NotMeasuredError

_SIZE, _INNER, _LAYERS, _HEADS = 768, 3072, 12, 12
_VOCABULARY, _POSITIONS, _TYPES = 30_522, 512, 2
_STEPS, _LENGTHS = (16_384, 32_768), (512, 128, 32)
_ATTEND: Any = varlen.varlen_attn  # its types differ between releases
_WARM_UP, _SECONDS = 20, 2.5
"""Seconds of replays, longer than a `Stopwatch` takes: at the power limit, as an engine is."""


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(_SIZE, 3 * _SIZE), nn.Linear(_SIZE, _SIZE)
        self.up, self.down = nn.Linear(_SIZE, _INNER), nn.Linear(_INNER, _SIZE)
        self.attention_norm, self.norm = nn.LayerNorm(_SIZE), nn.LayerNorm(_SIZE)

    def forward(self, hidden: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
        queries, keys, values = self.qkv(hidden).view(len(hidden), 3, _HEADS, -1).unbind(1)
        attended = _ATTEND(queries, keys, values, starts, starts, longest, longest)
        hidden = self.attention_norm(hidden + self.output(attended.flatten(1)))
        return self.norm(hidden + self.down(F.gelu(self.up(hidden))))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(_VOCABULARY, _SIZE), nn.Embedding(_TYPES, _SIZE)
        self.positions, self.norm = nn.Embedding(_POSITIONS, _SIZE), nn.LayerNorm(_SIZE)
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        """Normalised states of first tokens, [R, size]."""
        hidden = self.words(tokens) + self.positions(positions) + self.types.weight[0]
        hidden = self.norm(hidden)
        for block in self.blocks:
            hidden = block(hidden, starts, longest)
        return F.normalize(hidden[starts[:-1].long()].float(), dim=-1)


def measure() -> list[Figure]:
    """Sequences a second by length and tokens of a step. Raises NotMeasuredError without a GPU."""
    if not torch.cuda.is_available():
        raise NotMeasuredError("needs a CUDA device")
    with torch.device("cuda"), torch.inference_mode():
        encoder = torch.compile(_Encoder().to(torch.bfloat16).eval(), dynamic=False)
        return [*_figures(encoder)]


def _figures(encoder: Any) -> Iterator[Figure]:
    for step in _STEPS:
        for length in _LENGTHS:
            tokens = torch.randint(_VOCABULARY, (step,))
            starts = torch.arange(0, step + 1, length, dtype=torch.int32)
            positions = torch.arange(length).repeat(step // length)
            seconds = _seconds(encoder, tokens, positions, starts, length)
            name = f"texts of {length}, steps of {step:,} tokens"
            yield Figure(name, step / length / seconds, "sequences/s")


def _seconds(encoder: Any, *step: Any) -> float:
    """Of one step, replayed for some seconds."""
    for _ in range(3):
        encoder(*step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        encoder(*step)
    once = _replayed(graph, _WARM_UP)
    return _replayed(graph, max(int(_SECONDS / once), 1))


def _replayed(graph: torch.cuda.CUDAGraph, times: int) -> float:
    """Seconds of one of so many replays."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times / 1000
