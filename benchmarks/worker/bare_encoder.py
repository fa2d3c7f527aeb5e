"""Bare encoders on CUDA, the floors of an engine's: BERT, Nomic and ModernBERT base as modules of
torch, compiled, with FlashAttention 2 over packed texts, each step one CUDA graph of 16,384 tokens.
Weights are random, in bfloat16."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.report import Figure, NotMeasuredError

_SIZE, _HEADS, _WORDS, _POSITIONS = 768, 12, 30_522, 512
_STEP, _LENGTHS = 16_384, (512, 128, 32)
_ATTEND: Any = torch.ops.aten._flash_attention_forward  # noqa: SLF001
_NO_DROPOUT = (0.0, False, False)
"""Nor a causal mask, nor one to debug with."""
_WARM_UP, _SECONDS = 20, 2.5
"""Seconds of replays, longer than a `Stopwatch` takes: at the power limit, as an engine is."""


@dataclass(frozen=True, kw_only=True)
class _Form:
    """An encoder of 12 heads of 64. `window` is to either side, of all layers but each third."""

    layers: int
    inner: int
    activation: Callable[[torch.Tensor], torch.Tensor] = F.gelu
    gated: bool = False
    rotary: bool = False
    bias: bool = False
    norm_first: bool = False
    window: int | None = None


_FORMS = {
    "BERT base": _Form(layers=12, inner=3072, bias=True),
    "Nomic": _Form(layers=12, inner=3072, activation=F.silu, gated=True, rotary=True),
    "ModernBERT base": _Form(
        layers=22, inner=1152, gated=True, rotary=True, norm_first=True, window=64
    ),
}


@dataclass(frozen=True)
class _Step:
    """`tokens` and `positions` of T tokens; texts of `length` begin at `starts`, [texts + 1]."""

    tokens: torch.Tensor
    positions: torch.Tensor
    starts: torch.Tensor
    length: int


class _Block(nn.Module):
    def __init__(self, form: _Form, index: int) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=form.bias)
        self.form, self.window = form, form.window if index % 3 else None
        self.qkv, self.output = linear(_SIZE, 3 * _SIZE), linear(_SIZE, _SIZE)
        self.up = linear(_SIZE, form.inner * (1 + form.gated))
        self.down = linear(form.inner, _SIZE)
        self.attention_norm, self.norm = nn.LayerNorm(_SIZE), nn.LayerNorm(_SIZE)

    def forward(self, hidden: torch.Tensor, angles: Any, step: _Step) -> torch.Tensor:
        if self.form.norm_first:
            hidden = hidden + self._attend(self.attention_norm(hidden), angles, step)
            return hidden + self._expand(self.norm(hidden))
        hidden = self.attention_norm(hidden + self._attend(hidden, angles, step))
        return self.norm(hidden + self._expand(hidden))

    def _attend(self, hidden: torch.Tensor, angles: Any, step: _Step) -> torch.Tensor:
        queries, keys, values = self.qkv(hidden).view(len(hidden), 3, _HEADS, -1).unbind(1)
        if self.form.rotary:
            queries, keys = _rotated(queries, *angles), _rotated(keys, *angles)
        packed = (step.starts, step.starts, step.length, step.length)
        sides = dict.fromkeys(("window_size_left", "window_size_right"), self.window)
        attended, *_ = _ATTEND(queries, keys, values, *packed, *_NO_DROPOUT, **sides)
        return self.output(attended.flatten(1))

    def _expand(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.form.gated:
            return self.down(self.form.activation(self.up(hidden)))
        gate, up = self.up(hidden).chunk(2, -1)
        return self.down(self.form.activation(gate) * up)


def _rotated(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """`states` of [T, heads, 64], turned by angles of [T, 1, 32]."""
    first, second = states.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


class _Encoder(nn.Module):
    def __init__(self, form: _Form) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(_WORDS, _SIZE), nn.Embedding(2, _SIZE)
        self.positions, self.norm = nn.Embedding(_POSITIONS, _SIZE), nn.LayerNorm(_SIZE)
        self.rotary = form.rotary
        self.cosines, self.sines = (nn.Embedding(_POSITIONS, 32) for _ in range(2))
        self.blocks = nn.ModuleList(_Block(form, index) for index in range(form.layers))

    def forward(self, step: _Step) -> torch.Tensor:
        """Normalised states of first tokens, [texts, size]."""
        hidden = self.words(step.tokens) + self.types.weight[0]
        if not self.rotary:
            hidden = hidden + self.positions(step.positions)
        hidden = self.norm(hidden)
        angles = [each(step.positions)[:, None] for each in (self.cosines, self.sines)]
        for block in self.blocks:
            hidden = block(hidden, angles, step)
        return F.normalize(hidden[step.starts[:-1].long()].float(), dim=-1)


def measure() -> list[Figure]:
    """Sequences a second by form and length of texts. Raises NotMeasuredError without a GPU."""
    if not torch.cuda.is_available():
        raise NotMeasuredError("needs a CUDA device")
    with torch.device("cuda"), torch.inference_mode():
        return [figure for name, form in _FORMS.items() for figure in _figures(name, form)]


def _figures(name: str, form: _Form) -> Iterator[Figure]:
    torch.compiler.reset()  # no more than eight forms of one function are kept
    encoder = torch.compile(_Encoder(form).to(torch.bfloat16).eval(), dynamic=False)
    for length in _LENGTHS:
        tokens = torch.randint(_WORDS, (_STEP,))
        positions = torch.arange(length).repeat(_STEP // length)
        starts = torch.arange(0, _STEP + 1, length, dtype=torch.int32)
        seconds = _seconds(partial(encoder, _Step(tokens, positions, starts, length)))
        yield Figure(f"{name}, texts of {length}", _STEP / length / seconds, "sequences/s")


def _seconds(run: Callable[[], Any]) -> float:
    """Of one step, replayed for some seconds."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
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
