"""One vector a row of a causal model: the final state of its last token."""

import torch

from workers.heads.embed import EmbedResult
from workers.heads.requested_outputs import RequestedOutputs
from workers.heads.vector_modules import VectorModules
from workers.sampling.adjustments import TokenMask


class LastTokenHead:
    """Pools rows that end in a step: sentence-transformers' Pooling by the last token, and the
    modules behind it."""

    def __init__(self, modules: VectorModules) -> None:
        self._modules = modules

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> EmbedResult:
        del mask  # nothing is sampled
        return EmbedResult(self._modules(requested.last_states(hidden).float()))

    def warm_up(self, hidden: torch.Tensor) -> None:
        """There is nothing to compile."""
