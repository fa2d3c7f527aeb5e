"""The CUDA graphs of an encoder's steps: whole texts, padded up to one of a ladder of steps.

A captured step has room for a number of tokens and of rows. Tokens behind the last text are in no
row, and rows behind it have none. Heads are not captured.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.stage_attention import StageAttention
from workers.contract.config import ExecutionConfig
from workers.contract.messages import EncodeStep
from workers.contract.model_config import EncoderConfig, PoolingMode
from workers.device.transfer import pin, to_device, views
from workers.device.tuning import (
    LAUNCHES_MATTER,
    TEXT_GRAPH_LEAST_STRIDE,
    TEXT_GRAPH_MEAN_LENS,
    TEXT_GRAPH_RUNGS,
)
from workers.graphs.captured_step import FullGraph, GraphPool, Graphs, GraphSizes
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep, mode_of_one_token, most_tiles


class StaticTexts:
    """Inputs of at most `size` tokens in `rows` texts.

    They are views of one buffer, so that a step is loaded by one copy. `step` is over all of them.
    """

    def __init__(
        self,
        size: int,
        rows: int,
        modes: Sequence[PoolingMode],
        device: torch.device,
        *,
        types: bool,
    ) -> None:
        """With `types` tokens have them. `modes` are how the head pools."""
        self.size, self.rows = size, rows
        one_token = mode_of_one_token(modes)
        self._all_read = one_token is None
        names = ["tokens", "positions", *(["token_types"] if types else [])]
        nothing: dict[str, npt.NDArray[Any]] = dict.fromkeys(names, np.zeros(self.size, np.int64))
        if one_token is not None:
            nothing[one_token] = np.zeros(self.rows, np.int64)
        nothing["query_starts"] = np.zeros(self.rows + 1, np.int32)
        nothing["tiles"] = np.zeros((most_tiles(size), 3), np.int32)
        self._nothing, arrays = nothing, [*nothing.values()]
        self._buffer = pin(arrays).to(device)
        own = self._views = dict(zip(nothing, views(self._buffer, arrays), strict=True))
        even = np.diff(np.arange(rows + 1) * size // rows).astype(np.int32)
        self.step = PackedStep(
            *(own["tokens"], own["positions"], own["query_starts"], own["tiles"]),
            query_lens=even,
            token_types=own.get("token_types"),
            read=None if one_token is None else own[one_token],
        )

    def has_room_for(self, rows: int, all_read: bool) -> bool:
        """Whether it holds so many rows of tokens that fit. `all_read`: all final states are."""
        return rows <= self.rows and (self._all_read or not all_read)

    def place(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Queue the copy of a step's arrays, as a `packed_step.Place`. What is not captured gets
        memory of its own."""
        loaded: list[npt.NDArray[Any]] = []
        for name, nothing in self._nothing.items():
            values = arrays.get(name, nothing[:0])
            whole = np.full_like(nothing, values[-1] if name == "query_starts" else 0)
            whole[: len(values)] = values
            loaded.append(whole)
        self._buffer.copy_(pin(loaded), non_blocking=True)
        others = [name for name in arrays if name not in self._views]
        device = self._buffer.device
        alone = to_device([arrays[name] for name in others], device) if others else []
        own = {
            name: view[: len(arrays[name])] for name, view in self._views.items() if name in arrays
        }
        return own | dict(zip(others, alone, strict=True))

    def resolve_tokens(self) -> None:
        """Do nothing: the tokens of texts are known."""


TextGraph = FullGraph[StaticTexts]


class TextGraphs(Graphs):
    """The captured steps of an encoder's stage. A kind has rows for texts of a mean length, by
    which it is called."""

    def __init__(self) -> None:
        for mean in TEXT_GRAPH_MEAN_LENS:
            self._kinds[_kind(mean)] = []

    def select(self, message: EncodeStep) -> TextGraph | None:
        """The graph with the fewest tokens, and then rows, that has room for a step."""
        lens = np.frombuffer(message.query_lens, np.int32)
        total, all_read = int(lens.sum()), bool(message.requested)
        found: list[TextGraph] = []
        for graphs in reversed(vars(self).values()):
            start = bisect_left(graphs, total, key=_tokens)
            fit = (g for g in graphs[start:] if g.inputs.has_room_for(len(lens), all_read))
            found += islice(fit, 1)
        return min(found, key=_tokens, default=None)

    def _most_seconds(self) -> float:
        """Launches one by one would be hidden behind the device's work."""
        graphs: list[TextGraph] = sorted(chain(*vars(self).values()), key=_tokens)
        launching = min([graph.launch_seconds() for graph in graphs[:3]], default=0.0)
        return LAUNCHES_MATTER * launching


def _kind(mean: int) -> str:
    return f"of_{mean}"


def _tokens(graph: TextGraph) -> int:
    return graph.inputs.size


def text_graph_sizes(most_tokens: int, most_len: int) -> GraphSizes:
    """Tokens of the steps to capture, rising, by kind, none above `most_tokens`. Texts have up to
    `most_len` of them."""
    sizes = [0]
    while sizes[-1] < most_tokens:
        power = 1 << (sizes[-1].bit_length() - 1) if sizes[-1] else 0
        stride = max(TEXT_GRAPH_LEAST_STRIDE, power // TEXT_GRAPH_RUNGS)
        sizes.append(min(sizes[-1] + stride, most_tokens))
    return {
        _kind(mean): [size for size in sizes[1:] if size >= least and mean <= most_len]
        for mean, least in TEXT_GRAPH_MEAN_LENS.items()
    }


def capture_texts(
    config: ExecutionConfig,
    model: StageModel,
    attention: StageAttention,
    modes: Sequence[PoolingMode],
    hidden_like: torch.Tensor,
    sizes: GraphSizes,
) -> TextGraphs:
    """Capture steps of these sizes. `hidden_like` [1, state_size] is a token's input of a later
    stage. Results of all tokens, which are large, share one memory."""
    graphs, pool, share = TextGraphs(), GraphPool(), model.share
    most = max([0, *chain.from_iterable(sizes.values())])
    family = config.model.family
    width = config.model.hidden_size if share.last else hidden_like.shape[1]
    types = isinstance(family, EncoderConfig) and family.type_vocab_size > 1
    hidden_in = None if share.first else hidden_like.expand(most, -1).contiguous()
    hidden_out = hidden_like.new_empty(most, width)

    def capture(mean: int, size: int) -> TextGraph:
        inputs = StaticTexts(size, max(size // mean, 1), modes, hidden_like.device, types=types)
        own = None if hidden_in is None else hidden_in[:size]
        graph = TextGraph(inputs, model, attention, own)
        graph.hidden_out = hidden_out
        return graph.capture(pool)

    graphs.capture(sizes, {_kind(mean): partial(capture, mean) for mean in TEXT_GRAPH_MEAN_LENS})
    return graphs
