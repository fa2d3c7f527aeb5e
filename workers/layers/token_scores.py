"""An LM head of which only the logits of a few tokens are computed."""

import torch

from workers.layers.linear import Linear
from workers.layers.norm import RMSNorm
from workers.layers.placement import Placement


class TokenScores(Linear):
    """The logits of K tokens, in float32. The whole weight is loaded; `pack` keeps K rows of it."""

    def __init__(
        self,
        in_features: int,
        members: dict[str, int],
        placement: Placement,
        *,
        token_ids: tuple[int, ...],
        tied: torch.Tensor | None = None,
    ) -> None:
        """`tied` is the embedding [vocabulary, in_features], if that is the LM head."""
        super().__init__(in_features, members, placement, bias=False, tied=tied)
        self._token_ids = token_ids

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, K]"""
        states = (rows if norm is None else norm(rows)).float()
        # Not a product of matrices: a row's sums are the same beside any number of others.
        return torch.stack([(states * row).sum(1) for row in self._weight], 1)

    def pack(self) -> None:
        self._weight = self._weight[list(self._token_ids)].float()
