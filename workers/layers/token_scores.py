"""The end of a causal model that reranks: of its LM head, the logits of a few tokens."""

import torch

from workers.layers.layer import Layer, Rows
from workers.layers.placement import Placement


class TokenScores(Layer):
    """The logits of K tokens, in float32. Only their rows of the LM head are loaded, or taken from
    the embedding if that is the LM head and on the same stage."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        in_features: int,
        placement: Placement,
        *,
        token_ids: tuple[int, ...],
        embedding: torch.Tensor | None = None,
    ) -> None:
        """`name` is the LM head's; `embedding` is [vocab_size, in_features]."""
        self._name = f"{name}.weight"
        self._rows = Rows(token_ids, vocab_size)
        self._embedding = embedding
        self._weight = placement.empty(len(token_ids), in_features)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N, in_features] -> [N, K]"""
        states = states.float()
        # Not a product of matrices: a row's sums are the same beside any number of others.
        return torch.stack([(states * row).sum(1) for row in self._weight], 1)

    def weights(self) -> dict[str, torch.Tensor]:
        return {} if self._embedding is not None else {self._name: self._weight}

    def rows(self) -> dict[str, Rows]:
        return dict.fromkeys(self.weights(), self._rows)

    def pack(self) -> None:
        if self._embedding is not None:
            self._weight.copy_(self._embedding[list(self._rows.kept)])
        self._weight = self._weight.float()
